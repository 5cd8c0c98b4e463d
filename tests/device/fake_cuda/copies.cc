// Copies, and words in memory that streams write and wait for. All of it happens when it is run, not when it is
// queued.
#include <sys/mman.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "driver.h"

namespace fake {

namespace {

constexpr uintptr_t kPage = 4096;

bool mapped(Range range) {
  const uintptr_t begin = range.begin & ~(kPage - 1);
  return ::msync(reinterpret_cast<void*>(begin), range.end - begin, MS_ASYNC) == 0;
}

// Finds the registration of a copy's host side. An error: it spans two, or leaves the only one.
int find_registration(const Driver& driver, Range host, std::shared_ptr<Registration>* registration) {
  *registration = driver.registration_of(host.begin);
  if (*registration != nullptr) return (*registration)->range.contains(host) ? kSuccess : kInvalidValue;
  const auto next = driver.registrations.upper_bound(host.begin);
  const bool reaches = next != driver.registrations.end() && next->second->range.overlaps(host);
  return reaches ? kInvalidValue : kSuccess;
}

// By which address the ledger knows a word: the host's, if it has one.
DevicePointer known_as(DevicePointer address, const Place& place) {
  return place.registration != nullptr ? reinterpret_cast<uintptr_t>(place.memory) : address;
}

int copy(const char* entry, bool to_device, DevicePointer device, char* host, size_t bytes, void* handle) {
  Call call(entry, Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  if (bytes == 0) return kSuccess;
  Driver& driver = *call.driver;
  const Range range{reinterpret_cast<uintptr_t>(host), reinterpret_cast<uintptr_t>(host) + bytes};
  auto command = std::make_shared<Copy>(entry, to_device, device, host, bytes);
  command->allocation = driver.place_of(device, bytes).allocation;
  if (command->allocation == nullptr) {
    driver.complain(std::string(entry) + ": " + std::to_string(bytes) + " bytes at " + driver.name_of(device));
    return kInvalidValue;
  }
  if (driver.allocation_of(range.begin) != nullptr) return kInvalidValue;
  if (const int code = find_registration(driver, range, &command->registration)) return code;
  const bool pageable = command->registration == nullptr;
  if (pageable && driver.settings.strict) {
    driver.complain(std::string(entry) + ": the host memory is not registered");
    return kInvalidValue;
  }
  const int code = call.enqueue(stream, command);
  if (code != kSuccess || !pageable || stream->capture != nullptr) return code;
  if (const int ended = call.wait_for(command.get(), false)) return ended;
  call.thread->clock.join(command->clock);
  return kSuccess;
}

}  // namespace

bool Driver::still_there(const Command& command, const Allocation* allocation, const Registration* registration,
                         Range host) {
  if (allocation != nullptr && allocation->freed) {
    complain(command.who() + " uses device allocation " + std::to_string(allocation->number) + ", which was freed");
  }
  if (registration != nullptr && registration->ended) {
    complain(command.who() + " uses registration " + std::to_string(registration->number) +
             ", which was unregistered");
    return false;
  }
  if (host.begin < host.end && !mapped(host)) {
    complain(command.who() + " uses host memory that is not mapped");
    return false;
  }
  return true;
}

void Copy::begin(Driver& driver) {
  const auto begin = reinterpret_cast<uintptr_t>(host_);
  const Range host{begin, begin + bytes_};
  skipped_ = !driver.still_there(*this, allocation.get(), registration.get(), host);
  if (const int64_t speed = driver.option(to_device_ ? "up_bytes_per_s" : "down_bytes_per_s", 0); speed > 0) {
    const double seconds = static_cast<double>(bytes_) / static_cast<double>(speed);
    takes_ = std::chrono::nanoseconds(static_cast<int64_t>(1e9 * seconds));
  }
  driver.note(*this, {device_, device_ + bytes_}, to_device_ ? AccessKind::kWrite : AccessKind::kRead);
  driver.note(*this, host, to_device_ ? AccessKind::kRead : AccessKind::kWrite);
}

void Copy::run() {
  if (skipped_) return;
  const auto until = std::chrono::steady_clock::now() + takes_;
  char* const device = allocation->alias + (device_ - allocation->range.begin);
  std::memcpy(to_device_ ? device : host_, to_device_ ? host_ : device, bytes_);
  std::this_thread::sleep_until(until);
}

void WriteValue::begin(Driver& driver) {
  skipped_ = !driver.still_there(*this, place_.allocation.get(), place_.registration.get(), {});
  takes_ = std::chrono::microseconds(driver.option("word_us", 0));
  driver.note(*this, {address_, address_ + sizeof value_}, AccessKind::kAtomicWrite);
  if (barrier_) driver.ledger.stamp(address_, value_, clock);
}

void WriteValue::run() {
  if (skipped_) return;
  std::this_thread::sleep_for(takes_);
  __atomic_store_n(reinterpret_cast<uint32_t*>(place_.memory), value_, __ATOMIC_RELEASE);
}

bool WaitValue::ready() const {
  if (place_.registration != nullptr && place_.registration->ended) return true;  // `begin` says it
  const uint32_t now = __atomic_load_n(reinterpret_cast<uint32_t*>(place_.memory), __ATOMIC_ACQUIRE);
  switch (condition_) {
    case kWaitGreaterOrEqual:
      return static_cast<int32_t>(now - value_) >= 0;
    case kWaitEqual:
      return now == value_;
    case kWaitAnd:
      return (now & value_) != 0;
    default:
      return ~(now | value_) != 0;
  }
}

void WaitValue::begin(Driver& driver) {
  (void)driver.still_there(*this, place_.allocation.get(), place_.registration.get(), {});
  if (condition_ == kWaitGreaterOrEqual) {
    driver.ledger.join_at_least(address_, value_, &clock);
  } else {
    driver.ledger.acquire(address_, &clock);
  }
  driver.note(*this, {address_, address_ + sizeof value_}, AccessKind::kAtomicRead);
}

FAKE_EXPORT int cuMemcpyDtoHAsync_v2(void* host, DevicePointer device, size_t bytes, void* stream) {
  return copy("cuMemcpyDtoHAsync_v2", false, device, static_cast<char*>(host), bytes, stream);
}

FAKE_EXPORT int cuMemcpyHtoDAsync_v2(DevicePointer device, const void* host, size_t bytes, void* stream) {
  return copy("cuMemcpyHtoDAsync_v2", true, device, static_cast<char*>(const_cast<void*>(host)), bytes, stream);
}

FAKE_EXPORT int cuStreamWriteValue32_v2(void* handle, DevicePointer address, uint32_t value, unsigned flags) {
  Call call("cuStreamWriteValue32_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  const Place place = call.driver->place_of(address, sizeof value);
  if (place.memory == nullptr || address % sizeof value != 0) return kInvalidValue;
  if (call.driver->options["early_words"] != 0) {  // a driver that breaks the rule: a test of the ledger
    __atomic_store_n(reinterpret_cast<uint32_t*>(place.memory), value, __ATOMIC_RELEASE);
    return kSuccess;
  }
  const bool barrier = (flags & kWriteWithoutBarrier) == 0;
  return call.enqueue(stream,
                      std::make_shared<WriteValue>(call.entry, known_as(address, place), place, value, barrier));
}

FAKE_EXPORT int cuStreamWaitValue32_v2(void* handle, DevicePointer address, uint32_t value, unsigned flags) {
  Call call("cuStreamWaitValue32_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  const Place place = call.driver->place_of(address, sizeof value);
  if (place.memory == nullptr || address % sizeof value != 0) return kInvalidValue;
  return call.enqueue(stream,
                      std::make_shared<WaitValue>(call.entry, known_as(address, place), place, value, flags & 3));
}

FAKE_EXPORT int cuLaunchHostFunc(void* handle, HostFunction function, void* argument) {
  Call call("cuLaunchHostFunc", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  if (function == nullptr) return kInvalidValue;
  return call.enqueue(stream, std::make_shared<HostCall>(call.entry, function, argument));
}

}  // namespace fake
