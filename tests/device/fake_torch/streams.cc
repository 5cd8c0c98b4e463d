// What torch asks of a device beside memory and operations: its guard.
#include "streams.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>
#include <map>
#include <mutex>

#include "driver.h"
#include "memory.h"

namespace fake_torch {

namespace {

constexpr size_t kPool = 32;  // as torch's CUDA streams: the 33rd that is asked for is the first again

struct Current {
  int device = 0;
  uint64_t epoch = 0;
  std::array<c10::StreamId, kMostDevices> streams{};
};

Current& current() {
  thread_local Current of_thread;
  if (of_thread.epoch != epoch()) {  // the streams went with the former driver
    of_thread.streams.fill(0);
    of_thread.epoch = epoch();
  }
  return of_thread;
}

struct Pool {
  std::vector<c10::StreamId> streams;
  size_t next = 0;
};

struct Pools {
  std::mutex mutex;
  std::map<std::pair<int, bool>, Pool> pools;  // by device, and whether of high priority
};

Pools& pools() {
  static Pools* const all = new Pools;
  return *all;
}

c10::Stream stream_of(int device, c10::StreamId id) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(kFake, static_cast<c10::DeviceIndex>(device)), id);
}

c10::Stream pooled(int device, bool high) {
  const Pushed pushed(device);
  const std::lock_guard<std::mutex> lock(pools().mutex);
  Pool& pool = pools().pools[{device, high}];
  if (pool.streams.size() < kPool) {
    void* handle = nullptr;
    FAKE_CALL(cuStreamCreateWithPriority, &handle, 1, high ? -1 : 0);
    pool.streams.push_back(static_cast<c10::StreamId>(reinterpret_cast<intptr_t>(handle)));
    return stream_of(device, pool.streams.back());
  }
  return stream_of(device, pool.streams[pool.next++ % kPool]);
}

struct Event {
  void* handle;
  int device;
  uint64_t epoch;
};

Event* event_of(void* event) { return static_cast<Event*>(event); }
bool gone(const Event* event) { return event == nullptr || event->epoch != epoch(); }

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kFake; }

  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device former = getDevice();
    setDevice(device);
    return former;
  }

  c10::Device getDevice() const override { return {kFake, static_cast<c10::DeviceIndex>(current_device())}; }

  void setDevice(c10::Device device) const override {
    if (device.index() >= 0) set_current_device(device.index());
  }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.index() >= 0) current().device = device.index();
  }

  c10::Stream getStream(c10::Device device) const override { return current_stream(index_of(device)); }

  c10::Stream getDefaultStream(c10::Device device) const override { return stream_of(index_of(device), 0); }

  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high) const override {
    return pooled(index_of(device), high);
  }

  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return pooled(index_of(device), priority < 0);
  }

  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream former = current_stream(stream.device_index());
    current().streams.at(static_cast<size_t>(stream.device_index())) = stream.id();
    return former;
  }

  void* getStreamNativeHandle(const c10::Stream stream) const override {
    return reinterpret_cast<void*>(static_cast<intptr_t>(stream.id()));
  }

  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    try {
      if (!gone(event_of(event))) {
        const Pushed pushed(event_of(event)->device);
        FAKE_CALL(cuEventDestroy_v2, event_of(event)->handle);
      }
    } catch (const std::exception&) {
      // The driver has failed, or goes with the process.
    }
    delete event_of(event);
  }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    const Pushed pushed(stream.device_index());
    if (*event != nullptr && gone(event_of(*event))) {
      delete event_of(*event);
      *event = nullptr;
    }
    if (*event == nullptr) {
      void* handle = nullptr;
      FAKE_CALL(cuEventCreate, &handle, 2);
      *event = new Event{handle, stream.device_index(), epoch()};
    }
    TORCH_CHECK(event_of(*event)->device == stream.device_index(),
                "the event belongs to fake:", event_of(*event)->device,
                ", the stream to fake:", static_cast<int>(stream.device_index()));
    FAKE_CALL(cuEventRecord, event_of(*event)->handle, handle_of(stream));
  }

  void block(void* event, const c10::Stream& stream) const override {
    if (gone(event_of(event))) return;
    const Pushed pushed(stream.device_index());
    FAKE_CALL(cuStreamWaitEvent, handle_of(stream), event_of(event)->handle, 0);
  }

  bool queryEvent(void* event) const override {
    if (gone(event_of(event))) return true;
    const Pushed pushed(event_of(event)->device);
    return answered(driver().cuEventQuery(event_of(event)->handle), "cuEventQuery");
  }

  void synchronizeEvent(void* event) const override {
    if (gone(event_of(event))) return;
    const Pushed pushed(event_of(event)->device);
    wait_until([&] { return answered(driver().cuEventQuery(event_of(event)->handle), "cuEventQuery"); });
  }

  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(device_count()); }

  bool queryStream(const c10::Stream& stream) const override {
    const Pushed pushed(stream.device_index());
    return answered(driver().cuStreamQuery(handle_of(stream)), "cuStreamQuery");
  }

  void synchronizeStream(const c10::Stream& stream) const override { synchronize(stream); }

  bool isStreamCapturing(const c10::Stream& stream) const override {
    const Pushed pushed(stream.device_index());
    int status = 0;
    FAKE_CALL(cuStreamIsCapturing, handle_of(stream), &status);
    return status != 0;
  }

  void synchronizeDevice(const c10::DeviceIndex device) const override {
    const int index = device < 0 ? current_device() : device;
    for (const c10::StreamId id : known_streams(index)) synchronize(stream_of(index, id));
  }

  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    record_use(data, stream);
  }

 private:
  static int index_of(c10::Device device) { return device.index() < 0 ? current_device() : device.index(); }
};

const c10::impl::DeviceGuardImplRegistrar registrar(kFake, new Guard);

}  // namespace

int current_device() { return current().device; }

void set_current_device(int device) {
  if (device == current().device) return;
  TORCH_CHECK(device >= 0 && device < device_count(), "fake:", device, ": there is no such device");
  current().device = device;
}

c10::Stream current_stream(int device) {
  return stream_of(device, current().streams.at(static_cast<size_t>(device)));
}

std::vector<c10::StreamId> known_streams(int device) {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  std::vector<c10::StreamId> ids{0};
  for (const auto& [key, pool] : pools().pools) {
    if (key.first == device) ids.insert(ids.end(), pool.streams.begin(), pool.streams.end());
  }
  return ids;
}

namespace {

std::atomic<int64_t> waits{0};

}  // namespace

int64_t host_waits() { return waits; }

void synchronize(const c10::Stream& stream) {
  ++waits;
  const Pushed pushed(stream.device_index());
  wait_until([&] { return answered(driver().cuStreamQuery(handle_of(stream)), "cuStreamQuery"); });
}

void forget_streams() {
  const std::lock_guard<std::mutex> lock(pools().mutex);
  pools().pools.clear();
}

}  // namespace fake_torch
