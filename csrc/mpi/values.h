// What the constants stand for. MPItrampoline leaves the choice of all values to the library.
#pragma once

#include <cstdint>

#include "reduce/dtype.h"
#include "reduce/reduce_op.h"

#define DDL_MPI_EXPORT __attribute__((visibility("default")))

namespace ddl {
namespace mpi {

constexpr int kSuccess = 0;
constexpr int kFailed = 1;  // the only other status: Error_string says why
constexpr int kUndefined = -32766;
constexpr int kThreadMultiple = 3;
constexpr int64_t kWorld = 1;     // any other communicator is the address of a Comm
constexpr int64_t kInPlace = -1;  // no address

constexpr int64_t kFirstOp = 0x100, kFirstType = 0x200, kFirstComplex = 0x300;
constexpr int64_t value_of(ReduceOp op) { return kFirstOp + static_cast<int64_t>(op); }
constexpr int64_t value_of(DType dtype) { return kFirstType + static_cast<int64_t>(dtype); }
constexpr int64_t complex_of(DType part) { return kFirstComplex + static_cast<int64_t>(part); }

}  // namespace mpi
}  // namespace ddl
