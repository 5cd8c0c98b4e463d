#include "driver.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <mutex>
#include <thread>

#include "memory.h"
#include "streams.h"

namespace fake_torch {

namespace {

Table table;
std::atomic<bool> loaded{false};
std::atomic<uint64_t> current_epoch{1};

struct State {
  std::mutex mutex;
  bool initialised = false;
  std::array<void*, kMostDevices> contexts{};
};

State& state() {
  static State* const all = new State;  // never destroyed: threads of others may outlive it
  return *all;
}

template <typename Function>
void find(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(dlsym(library, name));
}

void initialise(State* all) {
  if (all->initialised) return;
  FAKE_CALL(cuInit, 0);
  all->initialised = true;
}

void* context_of(int device) {
  State& all = state();
  const std::lock_guard<std::mutex> lock(all.mutex);
  TORCH_CHECK(device >= 0 && device < kMostDevices, "fake:", device, ": there is no such device");
  void*& context = all.contexts[device];
  if (context == nullptr) {
    initialise(&all);
    FAKE_CALL(cuDevicePrimaryCtxRetain, &context, device);
  }
  return context;
}

// A call that tells of a failure, and of nothing that has been done.
void raise_if_failed() {
  int count = 0;
  FAKE_CALL(cuDeviceGetCount, &count);
}

}  // namespace

void load(const char* path) {
  if (loaded.load()) return;
  void* const library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  TORCH_CHECK(library != nullptr, "the fake driver cannot be loaded: ", dlerror());
#define FIND(name) find(library, #name, &table.name)
  FIND(cuInit);
  FIND(cuDeviceGetCount);
  FIND(cuDevicePrimaryCtxRetain);
  FIND(cuCtxPushCurrent_v2);
  FIND(cuCtxPopCurrent_v2);
  FIND(cuStreamCreateWithPriority);
  FIND(cuStreamQuery);
  FIND(cuStreamWaitEvent);
  FIND(cuStreamIsCapturing);
  FIND(cuEventCreate);
  FIND(cuEventRecord);
  FIND(cuEventQuery);
  FIND(cuEventDestroy_v2);
  FIND(cuMemcpyDtoHAsync_v2);
  FIND(cuMemcpyHtoDAsync_v2);
  FIND(cuMemAlloc_v2);
  FIND(cuMemHostRegister_v2);
  FIND(cuPointerGetAttributes);
  FIND(cuStreamWriteValue32_v2);
  FIND(fake_steps);
  FIND(fake_step);
  FIND(ddl_ledger_release);
  FIND(ddl_ledger_acquire);
#undef FIND
  TORCH_CHECK(table.fake_step != nullptr && table.cuMemAlloc_v2 != nullptr, path, " is not the fake driver");
  loaded.store(true);
}

const Table& driver() {
  TORCH_CHECK(loaded.load(), "the device \"fake\" is not installed");
  return table;
}

void check(int code, const char* call) {
  TORCH_CHECK_WITH(OutOfMemoryError, code != 2, "fake device out of memory: ", call, ": error 2");
  TORCH_CHECK(code == 0, "the fake driver has failed: ", call, ": error ", code);
}

int device_count() noexcept {
  try {
    {
      const std::lock_guard<std::mutex> lock(state().mutex);
      initialise(&state());
    }
    int count = 0;
    FAKE_CALL(cuDeviceGetCount, &count);
    return count < kMostDevices ? count : kMostDevices;
  } catch (const std::exception&) {
    return 0;
  }
}

uint64_t epoch() { return current_epoch.load(); }

void restart() {
  {
    State& all = state();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.initialised = false;
    all.contexts.fill(nullptr);
    ++current_epoch;
  }
  forget_memory();
  forget_streams();
}

Pushed::Pushed(int device) { FAKE_CALL(cuCtxPushCurrent_v2, context_of(device)); }

Pushed::~Pushed() { (void)table.cuCtxPopCurrent_v2(nullptr); }

void wait_until(const std::function<bool()>& holds) {
  const bool steps = driver().fake_steps() != 0;
  for (int round = 0; !holds(); ++round) {
    if (steps && driver().fake_step(1) > 0) continue;
    if (round < 50) {
      std::this_thread::yield();
    } else {
      if (round % 50 == 0) raise_if_failed();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

bool answered(int code, const char* call) {
  if (code == kNotReady) return false;
  check(code, call);
  return true;
}

}  // namespace fake_torch
