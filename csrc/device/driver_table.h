// The functions of the GPU driver that DDL calls, looked up by name in its library: DDL is built without CUDA.
//
// Made once, by Driver (driver.h), which calls the functions and judges what they return.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "device/driver.h"

namespace ddl {

// The functions that are called, by their exported names (which have the suffix of the version of their ABI).
struct DriverTable {
  void* library = nullptr;
  int (*init)(unsigned) = nullptr;
  int (*device_count)(int*) = nullptr;
  int (*device_get)(int*, int) = nullptr;
  int (*error_name)(int, const char**) = nullptr;
  int (*context_retain)(ContextHandle*, int) = nullptr;
  int (*context_push)(ContextHandle) = nullptr;
  int (*context_pop)(ContextHandle*) = nullptr;
  int (*pointer_attributes)(unsigned, int*, void**, DevicePointer) = nullptr;
  int (*stream_create)(StreamHandle*, unsigned, int) = nullptr;
  int (*stream_destroy)(StreamHandle) = nullptr;
  int (*stream_query)(StreamHandle) = nullptr;
  int (*stream_wait_event)(StreamHandle, EventHandle, unsigned) = nullptr;
  int (*stream_is_capturing)(StreamHandle, int*) = nullptr;
  int (*exchange_capture_mode)(int*) = nullptr;
  int (*event_create)(EventHandle*, unsigned) = nullptr;
  int (*event_record)(EventHandle, StreamHandle) = nullptr;
  int (*event_query)(EventHandle) = nullptr;
  int (*event_destroy)(EventHandle) = nullptr;
  int (*copy_down)(void*, DevicePointer, size_t, StreamHandle) = nullptr;
  int (*copy_up)(DevicePointer, const void*, size_t, StreamHandle) = nullptr;
  int (*host_register)(void*, size_t, unsigned) = nullptr;
  int (*host_device_pointer)(DevicePointer*, void*, unsigned) = nullptr;
  // Not in all drivers; null: this one lacks it.
  int (*write_word)(StreamHandle, DevicePointer, uint32_t, unsigned) = nullptr;
  int (*wait_for_word)(StreamHandle, DevicePointer, uint32_t, unsigned) = nullptr;
  int (*version)(int*) = nullptr;
  int (*device_name)(char*, int, int) = nullptr;
  int (*device_address)(char*, int, int) = nullptr;
  int (*device_attribute)(int*, int, int) = nullptr;
  int (*device_memory)(size_t*, int) = nullptr;
  int (*allocate)(DevicePointer*, size_t) = nullptr;
  int (*free)(DevicePointer) = nullptr;
  // Only the driver that tests use has these.
  void (*ledger_access)(const void*, size_t, int, const char*) = nullptr;
  void (*ledger_release)(const void*) = nullptr;
  void (*ledger_acquire)(const void*) = nullptr;
  void (*ledger_acquire_at_least)(const void*, uint32_t) = nullptr;
};

// Loads the library and finds its functions. Throws DriverUnusable if it cannot be loaded, or lacks one that is
// needed.
std::unique_ptr<DriverTable> load_driver(const std::string& name);

}  // namespace ddl
