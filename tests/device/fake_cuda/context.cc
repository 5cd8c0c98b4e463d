// The start, the devices and the contexts. Only primary contexts exist; each thread has a stack of current ones.
#include <cstdio>
#include <cstring>

#include "driver.h"

namespace fake {

namespace {

struct Uuid {
  char bytes[16];
};

bool exists(const Call& call, int device) { return device >= 0 && device < call.driver->settings.devices; }

std::shared_ptr<Context> context_of(const Driver& driver, void* handle) {
  for (const auto& context : driver.contexts) {
    if (context->handle == handle) return context;
  }
  return nullptr;
}

void end_context(Driver* driver, const std::shared_ptr<Context>& context) {
  context->alive = false;
  for (auto entry = driver->streams.begin(); entry != driver->streams.end();) {
    entry = entry->second->context == context ? driver->streams.erase(entry) : std::next(entry);
  }
  for (auto entry = driver->events.begin(); entry != driver->events.end();) {
    entry = entry->second->context == context ? driver->events.erase(entry) : std::next(entry);
  }
  driver->primary.erase(context->device);
}

}  // namespace

FAKE_EXPORT int cuInit(unsigned flags) {
  Call call("cuInit", Call::Needs::kNothing);
  if (call.ended) return call.code;
  if (flags != 0) return kInvalidValue;
  if (call.driver->settings.devices == 0) return kNoDevice;
  call.driver->initialised = true;
  return kSuccess;
}

FAKE_EXPORT int cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", Call::Needs::kNothing);
  if (call.ended) return call.code;
  const int64_t given = call.driver->options["version"];
  *version = given != 0 ? static_cast<int>(given) : 13000;
  return kSuccess;
}

FAKE_EXPORT int cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", Call::Needs::kDriver);
  if (call.ended) return call.code;
  *count = call.driver->settings.devices;
  return kSuccess;
}

FAKE_EXPORT int cuDeviceGet(int* device, int ordinal) {
  Call call("cuDeviceGet", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

FAKE_EXPORT int cuDeviceGetAttribute(int* value, int attribute, int device) {
  Call call("cuDeviceGetAttribute", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  const auto given = call.driver->options.find("attribute_" + std::to_string(attribute));
  if (given != call.driver->options.end()) {
    *value = static_cast<int>(given->second);
    return kSuccess;
  }
  // As an H200 in a PC server: compute mode 20, PCI bus, device and domain 33, 34, 50, copy engines 40, unified
  // addressing 41, capability 75 and 76, device pointers that are host pointers 91, registered host memory 99. Host
  // memory that is not registered (88, 100) is none of its business.
  static const std::map<int, int> known = {{20, 0}, {33, 0}, {34, 13}, {50, 0}, {40, 3},  {41, 1}, {75, 9},
                                           {76, 0}, {88, 0}, {91, 1},  {99, 1}, {100, 0}, {134, 0}};
  const auto entry = known.find(attribute);
  if (entry == known.end()) return kInvalidValue;
  *value = attribute == 34 ? entry->second + device : entry->second;  // PCI
  return kSuccess;
}

FAKE_EXPORT int cuDeviceGetName(char* text, int length, int device) {
  Call call("cuDeviceGetName", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  if (length < 1) return kInvalidValue;
  std::snprintf(text, static_cast<size_t>(length), "Fake H200");
  return kSuccess;
}

FAKE_EXPORT int cuDeviceTotalMem_v2(size_t* bytes, int device) {
  Call call("cuDeviceTotalMem_v2", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  *bytes = size_t{141} << 30;
  return kSuccess;
}

FAKE_EXPORT int cuDeviceGetUuid_v2(Uuid* uuid, int device) {
  Call call("cuDeviceGetUuid_v2", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  std::memset(uuid->bytes, 0xFA, sizeof uuid->bytes);
  uuid->bytes[15] = static_cast<char>(device);
  return kSuccess;
}

FAKE_EXPORT int cuDeviceGetPCIBusId(char* text, int length, int device) {
  Call call("cuDeviceGetPCIBusId", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  if (length < 13) return kInvalidValue;
  std::snprintf(text, static_cast<size_t>(length), "0000:00:%02x.0", static_cast<unsigned>(13 + device) & 0xff);
  return kSuccess;
}

FAKE_EXPORT int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  Call call("cuDevicePrimaryCtxGetState", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  *flags = 0;
  *active = call.driver->primary.count(device) != 0 ? 1 : 0;
  return kSuccess;
}

FAKE_EXPORT int cuDevicePrimaryCtxRetain(void** handle, int device) {
  Call call("cuDevicePrimaryCtxRetain", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  Driver& driver = *call.driver;
  std::shared_ptr<Context>& context = driver.primary[device];
  if (context == nullptr) {
    context = std::make_shared<Context>();
    context->device = device;
    context->handle = reinterpret_cast<void*>(0x4000000 + 16 * (driver.contexts.size() + 1));
    context->legacy = driver.add_stream(context, true, "legacy stream of device " + std::to_string(device));
    context->legacy->legacy = true;
    driver.contexts.push_back(context);
  }
  ++context->retained;
  *handle = context->handle;
  return kSuccess;
}

FAKE_EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  Call call("cuDevicePrimaryCtxRelease_v2", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (!exists(call, device)) return kInvalidDevice;
  const auto entry = call.driver->primary.find(device);
  if (entry == call.driver->primary.end()) return kInvalidContext;
  const std::shared_ptr<Context> context = entry->second;
  if (--context->retained == 0) end_context(call.driver, context);
  return kSuccess;
}

FAKE_EXPORT int cuCtxGetCurrent(void** handle) {
  Call call("cuCtxGetCurrent", Call::Needs::kDriver);
  if (call.ended) return call.code;
  const auto& stack = call.thread->contexts;
  *handle = stack.empty() || stack.back() == nullptr ? nullptr : stack.back()->handle;
  return kSuccess;
}

FAKE_EXPORT int cuCtxSetCurrent(void* handle) {
  Call call("cuCtxSetCurrent", Call::Needs::kDriver);
  if (call.ended) return call.code;
  const std::shared_ptr<Context> context = context_of(*call.driver, handle);
  if (handle != nullptr && context == nullptr) return kInvalidContext;
  auto& stack = call.thread->contexts;
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(context);
  return kSuccess;
}

FAKE_EXPORT int cuCtxPushCurrent_v2(void* handle) {
  Call call("cuCtxPushCurrent_v2", Call::Needs::kDriver);
  if (call.ended) return call.code;
  const std::shared_ptr<Context> context = context_of(*call.driver, handle);
  if (context == nullptr) return kInvalidContext;
  call.thread->contexts.push_back(context);
  return kSuccess;
}

FAKE_EXPORT int cuCtxPopCurrent_v2(void** handle) {
  Call call("cuCtxPopCurrent_v2", Call::Needs::kDriver);
  if (call.ended) return call.code;
  auto& stack = call.thread->contexts;
  if (stack.empty()) return kInvalidContext;
  if (handle != nullptr) *handle = stack.back() == nullptr ? nullptr : stack.back()->handle;
  stack.pop_back();
  return kSuccess;
}

FAKE_EXPORT int cuGetErrorName(int code, const char** name) {
  static const std::map<int, const char*> names = {
      {0, "CUDA_SUCCESS"},
      {1, "CUDA_ERROR_INVALID_VALUE"},
      {2, "CUDA_ERROR_OUT_OF_MEMORY"},
      {3, "CUDA_ERROR_NOT_INITIALIZED"},
      {4, "CUDA_ERROR_DEINITIALIZED"},
      {34, "CUDA_ERROR_STUB_LIBRARY"},
      {100, "CUDA_ERROR_NO_DEVICE"},
      {101, "CUDA_ERROR_INVALID_DEVICE"},
      {201, "CUDA_ERROR_INVALID_CONTEXT"},
      {400, "CUDA_ERROR_INVALID_HANDLE"},
      {600, "CUDA_ERROR_NOT_READY"},
      {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
      {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED"},
      {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
      {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
      {719, "CUDA_ERROR_LAUNCH_FAILED"},
      {800, "CUDA_ERROR_NOT_PERMITTED"},
      {801, "CUDA_ERROR_NOT_SUPPORTED"},
      {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
      {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
      {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
      {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT"},
      {907, "CUDA_ERROR_CAPTURED_EVENT"},
      {999, "CUDA_ERROR_UNKNOWN"},
  };
  const auto entry = names.find(code);
  *name = entry == names.end() ? nullptr : entry->second;
  return entry == names.end() ? kInvalidValue : kSuccess;
}

}  // namespace fake
