// The fake driver as the fake NCCL sees it: the library that DDL_CUDA_LIBRARY names, loaded already by who allocates.
#pragma once

#include <cstdint>
#include <string>

#include "../fake_cuda/launch.h"

namespace fake_nccl {

struct CudaDriver {
  int (*get_context)(void** context);
  int (*push_context)(void* context);
  int (*pop_context)(void** context);
  FakeLaunch launch;
  int (*device)();
  int (*physical)(int device);  // which GPU of the machine it is
  void (*complain)(const char* text);
  int (*steps)();
  int (*step)(int count);
  void (*access)(const void* host, size_t bytes, int writing, const char* who);
};

// Null: there is none. Looked for anew until it is there.
const CudaDriver* driver();

// Tells the driver's ledger; nobody, where there is no driver.
void complain(const std::string& text);

}  // namespace fake_nccl
