// Kernels of other libraries, as commands of a stream: the fake NCCL's operations.
//
// Such a command may depend on other processes: it is the head of its queue until it is ready, as a kernel that spins
// is, and no thread of the driver waits for it.
#include "launch.h"

#include <string>
#include <utility>
#include <vector>

#include "driver.h"

namespace fake {

namespace {

// Says what is wrong with the memory of a kernel that is to be queued.
bool usable_memory(Call* call, const Place& place, const char* name, DevicePointer pointer, size_t bytes) {
  Driver& driver = *call->driver;
  if (bytes == 0) return true;
  if (place.memory == nullptr) {
    driver.complain(std::string(name) + ": " + std::to_string(bytes) + " bytes at " + driver.name_of(pointer));
    return false;
  }
  if (place.allocation != nullptr && place.allocation->context != call->context) {
    driver.complain(std::string(name) + ": memory of another context: " + driver.name_of(pointer));
    return false;
  }
  return true;
}

}  // namespace

Kernel::~Kernel() {
  if (kernel_.release != nullptr) kernel_.release(kernel_.argument);
}

bool Kernel::ready() const { return kernel_.ready == nullptr || kernel_.ready(kernel_.argument) != 0; }

void Kernel::begin(Driver& driver) {
  const auto touch = [&](const Place& place, DevicePointer pointer, size_t bytes, AccessKind kind) {
    if (bytes == 0) return true;
    const bool there = driver.still_there(*this, place.allocation.get(), place.registration.get(), {});
    driver.note(*this, {pointer, pointer + bytes}, kind);
    return there;
  };
  const bool can_read = touch(from, kernel_.from, kernel_.from_bytes, AccessKind::kRead);
  const bool can_write = touch(to, kernel_.to, kernel_.to_bytes, AccessKind::kWrite);
  skipped_ = !can_read || !can_write;
}

void Kernel::run() {
  kernel_.run(kernel_.argument, skipped_ ? nullptr : from.memory, skipped_ ? nullptr : to.memory);
}

FAKE_EXPORT int fake_launch(void* handle, const FakeKernel* kernels, size_t count) {
  std::vector<std::shared_ptr<Kernel>>
      commands;  // before the call's locks: what is not queued is released behind them
  for (size_t i = 0; i < count; ++i) commands.push_back(std::make_shared<Kernel>(kernels[i]));
  Call call("fake_launch", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  const std::string name = count > 0 ? kernels[0].name : "";
  if (stream->context != call.context) {
    call.driver->complain(name + ": the stream is of another context");
    return kInvalidHandle;
  }
  if (stream->capture != nullptr) {
    call.driver->complain(name + ": a graph is being captured on the stream");
    return kCaptureUnsupported;
  }
  for (size_t i = 0; i < count; ++i) {
    const FakeKernel& kernel = kernels[i];
    commands[i]->from = call.driver->place_of(kernel.from, kernel.from_bytes);
    commands[i]->to = call.driver->place_of(kernel.to, kernel.to_bytes);
    if (!usable_memory(&call, commands[i]->from, kernel.name, kernel.from, kernel.from_bytes) ||
        !usable_memory(&call, commands[i]->to, kernel.name, kernel.to, kernel.to_bytes)) {
      return kInvalidValue;
    }
  }
  for (auto& command : commands) {
    if (const int code = call.enqueue(stream, std::move(command))) return code;
  }
  return kSuccess;
}

// The ordinal of the current context's device; -1: there is none.
FAKE_EXPORT int fake_device() {
  const Call call("fake_device", Call::Needs::kContext);
  return call.ended ? -1 : call.context->device;
}

// For what another library objects to.
FAKE_EXPORT void fake_complain(const char* text) {
  Driver* const driver = Driver::exited() ? nullptr : Driver::usable();
  if (driver == nullptr) return;
  const std::lock_guard<std::mutex> lock(driver->mutex);
  driver->complain(text);
}

}  // namespace fake
