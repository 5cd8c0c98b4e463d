// MPI's data types as the core's, and calls of the core.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/collectives.h"
#include "python/native_calls.h"
#include "reduce/dtype.h"

namespace ddl {
namespace mpi {

struct Type {
  DType dtype = DType::kUInt8;
  uint64_t width = 1;  // numbers in one element
  size_t bytes() const { return width * element_size(dtype); }
};

// Sets `*found`. Returns false if the core has no such type, or if the count of elements did not fit into MPI's 32
// bits and came out negative; then Error_string says so, for this function of MPI's.
bool find_type(const char* function, int64_t type, int count, Type* found);

DdlNativeCall call_of(Collective collective, const Type& type, const void* input, void* output, uint64_t elements);

}  // namespace mpi
}  // namespace ddl
