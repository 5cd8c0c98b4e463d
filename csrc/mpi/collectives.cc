// The collectives that XLA calls. Arrays stay where XLA has them.

#include <algorithm>
#include <cstdint>
#include <mutex>
#include <string>

#include "engine/collectives.h"
#include "mpi/errors.h"
#include "mpi/job.h"
#include "mpi/types.h"
#include "mpi/values.h"
#include "reduce/reduce_op.h"

namespace ddl {
namespace mpi {
namespace {

int run(Comm* comm, const DdlNativeCall& call) {
  if (!usable(*comm)) return kFailed;
  if (call.count == 0) return kSuccess;  // on all ranks
  char text[kTextRoom];
  const std::lock_guard<std::mutex> lock(comm->busy);
  return job().calls.load()->run(comm->group.native, &call, text, sizeof text) == 0 ? kSuccess : fail_call(text);
}

// Sets the operator. Returns false if the elements cannot be combined by it; then Error_string says so.
bool set_op(const char* function, int64_t op, const Type& type, DdlNativeCall* call) {
  const int64_t number = op - kFirstOp;
  if (number < 0 || number >= kReduceOpCount) {
    fail(std::string(function) + ": DDL has no operator for MPI's number " + std::to_string(op));
    return false;
  }
  if (type.width > 1 && static_cast<ReduceOp>(number) != ReduceOp::kSum) {
    fail(std::string(function) + ": complex numbers can be summed only");
    return false;
  }
  call->op = static_cast<int32_t>(number);
  return true;
}

}  // namespace

extern "C" {

DDL_MPI_EXPORT int MPIABI_Allreduce(const void* input, void* output, int count, int64_t datatype, int64_t op,
                                    int64_t comm) {
  Type type;
  if (!find_type("MPI_Allreduce", datatype, count, &type)) return kFailed;
  const void* const from = reinterpret_cast<int64_t>(input) == kInPlace ? output : input;
  DdlNativeCall call = call_of(Collective::kAllreduce, type, from, output, static_cast<uint64_t>(count));
  return set_op("MPI_Allreduce", op, type, &call) ? run(comm_of(comm), call) : kFailed;
}

DDL_MPI_EXPORT int MPIABI_Allgather(const void* input, int, int64_t, void* output, int count, int64_t datatype,
                                    int64_t comm) {
  Type type;
  if (!find_type("MPI_Allgather", datatype, count, &type)) return kFailed;
  Comm* const group = comm_of(comm);
  const size_t own = static_cast<size_t>(group->group.rank) * static_cast<size_t>(count) * type.bytes();
  const bool in_place = reinterpret_cast<int64_t>(input) == kInPlace;
  const void* const from = in_place ? static_cast<char*>(output) + own : input;
  DdlNativeCall call = call_of(Collective::kAllgather, type, from, output, static_cast<uint64_t>(count));
  call.part = call.count;
  return run(group, call);
}

DDL_MPI_EXPORT int MPIABI_Reduce_scatter(const void* input, void* output, const int* counts, int64_t datatype,
                                         int64_t op, int64_t comm) {
  Type type;
  if (!find_type("MPI_Reduce_scatter", datatype, counts[0], &type)) return kFailed;
  Comm* const group = comm_of(comm);
  const int size = group->group.size;
  if (std::count(counts, counts + size, counts[0]) != size || reinterpret_cast<int64_t>(input) == kInPlace) {
    return fail("MPI_Reduce_scatter: DDL does it with blocks of one size only, and not in place");
  }
  const auto part = static_cast<uint64_t>(counts[0]);
  DdlNativeCall call = call_of(Collective::kReducescatter, type, input, output, part * static_cast<uint64_t>(size));
  call.part = part * type.width;
  return set_op("MPI_Reduce_scatter", op, type, &call) ? run(group, call) : kFailed;
}

}  // extern "C"

}  // namespace mpi
}  // namespace ddl
