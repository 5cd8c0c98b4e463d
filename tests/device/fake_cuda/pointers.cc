// What the driver tells of an address: on which device it is, and where its allocation or registration begins.
#include <cstring>

#include "driver.h"

namespace fake {

namespace {

// CU_POINTER_ATTRIBUTE_…, and how many bytes the answer has.
constexpr int kContextOf = 1, kMemoryType = 2, kDevicePointerOf = 3, kHostPointerOf = 4, kBufferId = 7,
              kIsManaged = 8, kDeviceOrdinal = 9, kIpcCapable = 10, kRangeStart = 11, kRangeSize = 12;

struct Answer {
  void* context = nullptr;
  int memory_type = 0, ordinal = 0;
  uint64_t device_pointer = 0, host_pointer = 0, buffer = 0;
  Range range;
};

template <typename Value>
void put(void* to, Value value) {
  std::memcpy(to, &value, sizeof value);
}

bool put_attribute(const Answer& answer, int attribute, void* to) {
  switch (attribute) {
    case kContextOf:
      put(to, answer.context);
      return true;
    case kMemoryType:
      put(to, answer.memory_type);
      return true;
    case kDevicePointerOf:
      put(to, answer.device_pointer);
      return true;
    case kHostPointerOf:
      put(to, answer.host_pointer);
      return true;
    case kBufferId:
      put(to, answer.buffer);
      return true;
    case kIsManaged:
    case kIpcCapable:
      put(to, 0);
      return true;
    case kDeviceOrdinal:
      put(to, answer.ordinal);
      return true;
    case kRangeStart:
      put(to, answer.range.begin);
      return true;
    case kRangeSize:
      put(to, answer.range.end - answer.range.begin);
      return true;
    default:
      return false;
  }
}

}  // namespace

// As the real one: memory that the driver does not know is no error, its attributes are all zero. No context is
// needed.
FAKE_EXPORT int cuPointerGetAttributes(unsigned count, const int* attributes, void** data, DevicePointer pointer) {
  Call call("cuPointerGetAttributes", Call::Needs::kDriver);
  if (call.ended) return call.code;
  Answer answer;
  const auto allocation = call.driver->allocation_of(pointer);
  const auto registration = call.driver->registration_of(pointer);
  if (allocation != nullptr && !allocation->freed) {
    answer.context = allocation->pooled ? nullptr : allocation->context->handle;
    answer.memory_type = kMemoryDevice;
    answer.ordinal = allocation->context->device;
    answer.device_pointer = pointer;
    answer.buffer = allocation->number;
    answer.range = allocation->range;
  } else if (registration != nullptr) {
    answer.context = registration->context->handle;
    answer.memory_type = kMemoryHost;
    answer.ordinal = registration->context->device;
    answer.device_pointer = answer.host_pointer = pointer;
    answer.buffer = registration->number;
    answer.range = {registration->base, registration->base + registration->bytes};
  }
  for (unsigned i = 0; i < count; ++i) {
    if (!put_attribute(answer, attributes[i], data[i])) return kInvalidValue;
  }
  return kSuccess;
}

}  // namespace fake
