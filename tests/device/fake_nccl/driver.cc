#include "driver.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

namespace fake_nccl {

namespace {

template <typename Function>
bool look_up(void* library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(::dlsym(library, name));
  return *function != nullptr;
}

const CudaDriver* load() {
  const char* const path = std::getenv("DDL_CUDA_LIBRARY");
  void* const library = path == nullptr ? nullptr : ::dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  auto* const table = new CudaDriver();  // for good, as the library
  const bool whole =
      look_up(library, "cuCtxGetCurrent", &table->get_context) &&
      look_up(library, "cuCtxPushCurrent_v2", &table->push_context) &&
      look_up(library, "cuCtxPopCurrent_v2", &table->pop_context) &&
      look_up(library, "fake_launch", &table->launch) && look_up(library, "fake_device", &table->device) &&
      look_up(library, "fake_physical", &table->physical) && look_up(library, "fake_complain", &table->complain) &&
      look_up(library, "fake_steps", &table->steps) && look_up(library, "fake_step", &table->step) &&
      look_up(library, "ddl_ledger_access", &table->access);
  if (whole) return table;
  delete table;
  return nullptr;
}

}  // namespace

const CudaDriver* driver() {
  static std::atomic<const CudaDriver*> known{nullptr};
  const CudaDriver* table = known.load(std::memory_order_acquire);
  if (table == nullptr) {
    table = load();  // two threads at a time load the same
    known.store(table, std::memory_order_release);
  }
  return table;
}

void complain(const std::string& text) {
  if (const CudaDriver* const cuda = driver()) cuda->complain(text.c_str());
}

}  // namespace fake_nccl
