#include "device/driver_table.h"

#include <dlfcn.h>

#include <type_traits>

namespace ddl {

std::unique_ptr<DriverTable> load_driver(const std::string& name) {
  auto table = std::make_unique<DriverTable>();
  // Never closed: its threads and exit handlers are its own.
  table->library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (table->library == nullptr) {
    const char* const why = ::dlerror();
    throw DriverUnusable(name + " cannot be loaded (" + (why != nullptr ? why : "no reason given") + ")", true);
  }
  const auto find = [&](const char* symbol, auto* function) {
    *function = reinterpret_cast<std::remove_pointer_t<decltype(function)>>(::dlsym(table->library, symbol));
    return *function != nullptr;
  };
  const auto need = [&](const char* symbol, auto* function) {
    if (!find(symbol, function)) throw DriverUnusable(name + " is no driver, or too old: it has no " + symbol, false);
  };
  need("cuInit", &table->init);
  need("cuDeviceGetCount", &table->device_count);
  need("cuDeviceGet", &table->device_get);
  need("cuGetErrorName", &table->error_name);
  need("cuDevicePrimaryCtxRetain", &table->context_retain);
  need("cuCtxPushCurrent_v2", &table->context_push);
  need("cuCtxPopCurrent_v2", &table->context_pop);
  need("cuPointerGetAttributes", &table->pointer_attributes);
  need("cuStreamCreateWithPriority", &table->stream_create);
  need("cuStreamDestroy_v2", &table->stream_destroy);
  need("cuStreamQuery", &table->stream_query);
  need("cuStreamWaitEvent", &table->stream_wait_event);
  need("cuStreamIsCapturing", &table->stream_is_capturing);
  need("cuThreadExchangeStreamCaptureMode", &table->exchange_capture_mode);
  need("cuEventCreate", &table->event_create);
  need("cuEventRecord", &table->event_record);
  need("cuEventQuery", &table->event_query);
  need("cuEventDestroy_v2", &table->event_destroy);
  need("cuMemcpyDtoHAsync_v2", &table->copy_down);
  need("cuMemcpyHtoDAsync_v2", &table->copy_up);
  need("cuMemHostRegister_v2", &table->host_register);
  need("cuMemHostGetDevicePointer_v2", &table->host_device_pointer);
  find("cuStreamWriteValue32_v2", &table->write_word);
  find("cuStreamWaitValue32_v2", &table->wait_for_word);
  find("cuDriverGetVersion", &table->version);
  find("cuDeviceGetName", &table->device_name);
  find("cuDeviceGetPCIBusId", &table->device_address);
  find("cuDeviceGetAttribute", &table->device_attribute);
  find("cuDeviceTotalMem_v2", &table->device_memory);
  find("cuMemAlloc_v2", &table->allocate);
  find("cuMemFree_v2", &table->free);
  find("ddl_ledger_access", &table->ledger_access);
  find("ddl_ledger_release", &table->ledger_release);
  find("ddl_ledger_acquire", &table->ledger_acquire);
  find("ddl_ledger_acquire_at_least", &table->ledger_acquire_at_least);
  return table;
}

}  // namespace ddl
