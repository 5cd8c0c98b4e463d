#include "mpi/types.h"

#include <string>

#include "mpi/errors.h"
#include "mpi/values.h"

namespace ddl {
namespace mpi {

bool find_type(const char* function, int64_t type, int count, Type* found) {
  const bool is_complex = type >= kFirstComplex && type < kFirstComplex + kDTypeCount;
  const bool is_real = type >= kFirstType && type < kFirstType + kDTypeCount;
  if (!is_complex && !is_real) {
    fail(std::string(function) + ": DDL does not know MPI's data type number " + std::to_string(type));
    return false;
  }
  if (count < 0) {
    fail(std::string(function) + ": JAX has passed the count " + std::to_string(count) +
         ", as MPI's counts have 32 bits, and this array has more elements or bytes; pass it in parts below 2 GiB");
    return false;
  }
  *found = {static_cast<DType>(type - (is_complex ? kFirstComplex : kFirstType)), is_complex ? 2U : 1U};
  return true;
}

DdlNativeCall call_of(Collective collective, const Type& type, const void* input, void* output, uint64_t elements) {
  const uint64_t count = elements * type.width;
  return {static_cast<int32_t>(collective), 0, static_cast<int32_t>(type.dtype), 0, input, output, count, 0};
}

}  // namespace mpi
}  // namespace ddl
