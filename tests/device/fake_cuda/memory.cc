// Memory: what the device has, what of the host's is registered, and whose an address is.
//
// Device memory is a memfd that is mapped twice: without access at its "device address", so that a host touch faults,
// and readable and writable at an alias that only the fake knows. Freed memory is poisoned, and stays mapped at its
// alias until the next reset: what still copies from it gets poison, and a violation.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "driver.h"

namespace fake {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kRegion = size_t{64} << 30;      // of addresses
constexpr uintptr_t kShift = uintptr_t{1} << 52;  // beyond all that the host has
constexpr int kPoison = 0xDD;
const char* const kUnregister = "cuMemHostUnregister";

uintptr_t page_down(uintptr_t address) { return address & ~(kPage - 1); }
uintptr_t page_up(uintptr_t address) { return page_down(address + kPage - 1); }
void* pointer(uintptr_t address) { return reinterpret_cast<void*>(address); }

bool mapped(Range pages) { return ::msync(pointer(pages.begin), pages.end - pages.begin, MS_ASYNC) == 0; }

// The entry with the greatest begin that is not above the address, or null.
template <typename Object>
std::shared_ptr<Object> below(const std::map<uintptr_t, std::shared_ptr<Object>>& objects, uintptr_t address) {
  auto entry = objects.upper_bound(address);
  return entry == objects.begin() ? nullptr : std::prev(entry)->second;
}

// Maps memory for an allocation; false: there is no more.
bool map_memory(Driver* driver, size_t bytes, Allocation* allocation) {
  const size_t size = page_up(bytes);
  if (driver->region == 0) {
    void* const region = ::mmap(nullptr, kRegion, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (region == MAP_FAILED) return false;
    driver->region = reinterpret_cast<uintptr_t>(region);
  }
  if (size < bytes || size + kPage > kRegion - driver->region_used) return false;
  const int file = ::memfd_create("fake_cuda", MFD_CLOEXEC);
  if (file < 0) return false;
  const uintptr_t begin = driver->region + driver->region_used;
  void* alias = MAP_FAILED;
  if (::ftruncate(file, static_cast<off_t>(size)) == 0) {
    alias = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  }
  const bool seen =
      alias != MAP_FAILED && ::mmap(pointer(begin), size, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0) != MAP_FAILED;
  ::close(file);
  if (!seen) return false;
  driver->region_used += size + kPage;  // a page without memory before the next allocation
  allocation->range = {begin, begin + bytes};
  allocation->alias = static_cast<char*>(alias);
  return true;
}

}  // namespace

std::shared_ptr<Allocation> Driver::allocation_of(DevicePointer pointer) const {
  std::shared_ptr<Allocation> allocation = below(allocations, pointer);
  return allocation != nullptr && pointer < allocation->range.end ? allocation : nullptr;
}

std::shared_ptr<Registration> Driver::registration_of(uintptr_t host) const {
  std::shared_ptr<Registration> registration = below(registrations, host);
  return registration != nullptr && host < registration->range.end ? registration : nullptr;
}

Place Driver::place_of(DevicePointer address, size_t bytes) const {
  const Range range{address, address + bytes};
  Place place;
  if (auto allocation = allocation_of(address)) {
    if (allocation->freed || !allocation->range.contains(range)) return place;
    place.memory = allocation->alias + (address - allocation->range.begin);
    place.allocation = std::move(allocation);
  } else if (auto registration = registration_of(host_of(address))) {
    if (!registration->range.contains({host_of(range.begin), host_of(range.end)})) return place;
    place.memory = static_cast<char*>(pointer(host_of(address)));
    place.registration = std::move(registration);
  }
  return place;
}

uintptr_t Driver::host_of(DevicePointer address) const {
  const auto shifted = options.find("shifted_addresses");
  return shifted == options.end() || shifted->second == 0 ? address : address - kShift;
}

std::string Driver::name_of(uintptr_t address) const {
  if (const auto allocation = allocation_of(address)) {
    return "device allocation " + std::to_string(allocation->number) + " + " +
           std::to_string(address - allocation->range.begin) + " (of " +
           std::to_string(allocation->range.end - allocation->range.begin) + " bytes on device " +
           std::to_string(allocation->context->device) + (allocation->freed ? ", freed)" : ")");
  }
  if (const auto registration = registration_of(address)) {
    return "registration " + std::to_string(registration->number) + " + " +
           std::to_string(address - registration->range.begin);
  }
  if (region != 0 && address >= region && address < region + kRegion) return "no device allocation";
  return "host memory";
}

void Driver::unmap_all() {
  for (const auto& entry : allocations) {
    ::munmap(entry.second->alias, page_up(entry.second->range.end) - entry.second->range.begin);
  }
  allocations.clear();
  if (region_used > 0) ::munmap(pointer(region), kRegion);
  if (region_used > 0) region = 0;
  region_used = 0;
}

FAKE_EXPORT int cuMemAlloc_v2(DevicePointer* pointer, size_t bytes) {
  Call call("cuMemAlloc_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  if (const int code = call.driver->unsafe_call(*call.thread)) return code;
  if (bytes == 0) return kInvalidValue;
  auto allocation = std::make_shared<Allocation>();
  if (!map_memory(call.driver, bytes, allocation.get())) return kOutOfMemory;
  allocation->number = ++call.driver->numbers;
  allocation->context = call.context;
  allocation->pooled = call.driver->options["pooled"] != 0;
  *pointer = allocation->range.begin;
  call.driver->allocations[allocation->range.begin] = std::move(allocation);
  return kSuccess;
}

// The real call waits for the device, under the driver's lock: option "free_waits". Without it, a program that relies
// on that is shown to do so.
FAKE_EXPORT int cuMemFree_v2(DevicePointer pointer) {
  Call call("cuMemFree_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  Driver& driver = *call.driver;
  if (const int code = driver.unsafe_call(*call.thread)) return code;
  if (pointer == 0) return kSuccess;
  const auto entry = driver.allocations.find(pointer);
  if (entry == driver.allocations.end() || entry->second->freed) {
    driver.complain("cuMemFree_v2 of " + driver.name_of(pointer));
    return kInvalidValue;
  }
  const std::shared_ptr<Allocation> allocation = entry->second;
  if (driver.options["free_waits"] != 0) {
    if (const int code = call.wait_for(nullptr, true)) return code;
    for (const auto& stream : driver.all_streams) call.thread->clock.join(stream->clock);
  }
  driver.note(*call.thread, "cuMemFree_v2", allocation->range, AccessKind::kWrite);
  allocation->freed = true;
  call.wait_until_still();  // what is being copied at this moment is copied whole
  std::memset(allocation->alias, kPoison, allocation->range.end - allocation->range.begin);
  return kSuccess;
}

FAKE_EXPORT int cuMemGetAddressRange_v2(DevicePointer* base, size_t* bytes, DevicePointer pointer) {
  Call call("cuMemGetAddressRange_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  const auto allocation = call.driver->allocation_of(pointer);
  if (allocation == nullptr || allocation->freed) return kInvalidValue;
  if (base != nullptr) *base = allocation->range.begin;
  if (bytes != nullptr) *bytes = allocation->range.end - allocation->range.begin;
  return kSuccess;
}

FAKE_EXPORT int cuMemHostRegister_v2(void* host, size_t bytes, unsigned) {
  Call call("cuMemHostRegister_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  Driver& driver = *call.driver;
  if (const int code = driver.unsafe_call(*call.thread)) return code;
  const auto base = reinterpret_cast<uintptr_t>(host);
  if (base == 0 || bytes == 0 || base + bytes < base) return kInvalidValue;
  auto registration = std::make_shared<Registration>();
  registration->base = base;
  registration->bytes = bytes;
  registration->range = {page_down(base), page_up(base + bytes)};
  const auto last = below(driver.registrations, registration->range.end - 1);
  if (last != nullptr && last->range.overlaps(registration->range)) return kAlreadyRegistered;
  if (driver.allocation_of(base) != nullptr || !mapped(registration->range)) return kInvalidValue;
  registration->number = ++driver.numbers;
  registration->context = call.context;
  driver.ledger.renew(registration->range, kUnregister);
  driver.registrations[registration->range.begin] = std::move(registration);
  return kSuccess;
}

FAKE_EXPORT int cuMemHostUnregister(void* host) {
  Call call(kUnregister, Call::Needs::kContext);
  if (call.ended) return call.code;
  Driver& driver = *call.driver;
  if (const int code = driver.unsafe_call(*call.thread)) return code;
  const auto registration = driver.registration_of(reinterpret_cast<uintptr_t>(host));
  if (registration == nullptr || registration->base != reinterpret_cast<uintptr_t>(host)) return kNotRegistered;
  driver.note(*call.thread, kUnregister, registration->range, AccessKind::kWrite);
  registration->ended = true;
  driver.registrations.erase(registration->range.begin);
  call.wait_until_still();  // the caller may unmap it
  return kSuccess;
}

FAKE_EXPORT int cuMemHostGetDevicePointer_v2(DevicePointer* device, void* host, unsigned) {
  Call call("cuMemHostGetDevicePointer_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  if (call.driver->registration_of(reinterpret_cast<uintptr_t>(host)) == nullptr) return kInvalidValue;
  const auto address = reinterpret_cast<uintptr_t>(host);
  *device = call.driver->options["shifted_addresses"] != 0 ? address + kShift : address;  // as attribute 91 says
  return kSuccess;
}

FAKE_EXPORT int cuIpcGetMemHandle(void*, DevicePointer) {
  Call call("cuIpcGetMemHandle", Call::Needs::kContext);
  return call.ended ? call.code : kNotSupported;
}

struct IpcHandle {
  char bytes[64];
};

FAKE_EXPORT int cuIpcOpenMemHandle_v2(DevicePointer*, IpcHandle, unsigned) {
  Call call("cuIpcOpenMemHandle_v2", Call::Needs::kContext);
  return call.ended ? call.code : kNotSupported;
}

FAKE_EXPORT int cuIpcCloseMemHandle(DevicePointer) {
  Call call("cuIpcCloseMemHandle", Call::Needs::kContext);
  return call.ended ? call.code : kNotSupported;
}

}  // namespace fake
