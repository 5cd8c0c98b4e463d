// Memory of another process, as the kernel's copies want it told.
#pragma once

#include <sys/uio.h>

#include <cstdint>

namespace ddl {

inline iovec remote(uint64_t address, uint64_t bytes) {
  return {reinterpret_cast<void*>(static_cast<uintptr_t>(address)), bytes};
}

}  // namespace ddl
