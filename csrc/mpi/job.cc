#include "mpi/job.h"

#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>

#include "mpi/errors.h"
#include "mpi/values.h"

namespace ddl {
namespace mpi {

Job& job() {
  static Job* const only = new Job;  // never destroyed: threads of XLA's may use it until the process ends
  return *only;
}

Comm* comm_of(int64_t comm) { return comm == kWorld ? &job().world : reinterpret_cast<Comm*>(comm); }

namespace {

// Returns why there are no calls of the core; empty: there are.
std::string missing() {
  if (job().calls.load() != nullptr) return "";
  const std::lock_guard<std::mutex> lock(job().starting);
  return job().problem;
}

int status_of(const std::string& problem) { return problem.empty() ? kSuccess : fail(problem); }

int initialize(int* provided) {
  Job& own = job();
  const std::lock_guard<std::mutex> lock(own.starting);
  if (provided != nullptr) *provided = kThreadMultiple;
  if (own.calls.load() != nullptr) return kSuccess;
  try {
    const DdlNativeCalls* calls = nullptr;
    own.world.group = begin(&calls);
    own.calls.store(calls);
    return kSuccess;
  } catch (const std::exception& error) {
    own.problem = error.what();
    return fail_call(own.problem);
  }
}

}  // namespace

bool usable(const Comm& comm) { return status_of(comm.broken.empty() ? missing() : comm.broken) == kSuccess; }

extern "C" {

DDL_MPI_EXPORT int MPIABI_Init(int*, char***) { return initialize(nullptr); }
DDL_MPI_EXPORT int MPIABI_Init_thread(int*, char***, int, int* provided) { return initialize(provided); }
DDL_MPI_EXPORT int MPIABI_Initialized(int* flag) {
  *flag = job().calls.load() != nullptr;
  return kSuccess;
}
// DDL leaves the job when Python ends, or by ddl.shutdown(): others may use it beside XLA.
DDL_MPI_EXPORT int MPIABI_Finalize() {
  job().finalized.store(true);
  return kSuccess;
}
DDL_MPI_EXPORT int MPIABI_Finalized(int* flag) {
  *flag = job().finalized.load();
  return kSuccess;
}
DDL_MPI_EXPORT int MPIABI_Query_thread(int* provided) {
  *provided = kThreadMultiple;
  return kSuccess;
}
// XLA makes communicators only in a thread that is told so. DDL makes them in any.
DDL_MPI_EXPORT int MPIABI_Is_thread_main(int* flag) {
  *flag = 1;
  return kSuccess;
}

DDL_MPI_EXPORT int MPIABI_Comm_rank(int64_t comm, int* rank) {
  *rank = comm_of(comm)->group.rank;
  return status_of(missing());
}

DDL_MPI_EXPORT int MPIABI_Comm_size(int64_t comm, int* size) {
  *size = comm_of(comm)->group.size;
  return status_of(missing());
}

// XLA does not look at the status, so `*part` is a communicator in any case; if it could not be made, each call says
// why.
DDL_MPI_EXPORT int MPIABI_Comm_split(int64_t comm, int color, int key, int64_t* part) {
  auto made = std::make_unique<Comm>();
  try {
    const std::string problem = missing();
    if (!problem.empty()) throw std::runtime_error(problem);
    if (comm != kWorld) throw std::runtime_error("MPI_Comm_split: DDL splits MPI_COMM_WORLD only");
    made->group = split(color, key, color != kUndefined);
  } catch (const std::exception& error) {
    made->broken = error.what();
    made->group = {nullptr, key, key + 1};
    fail_call(made->broken);
  }
  const int status = made->broken.empty() ? kSuccess : kFailed;
  *part = reinterpret_cast<int64_t>(made.release());
  return status;
}

// After the end of the program, Python may be gone: nothing is to be let go of then.
DDL_MPI_EXPORT int MPIABI_Comm_free(int64_t* comm) {
  const std::unique_ptr<Comm> freed(*comm == kWorld ? nullptr : comm_of(*comm));
  *comm = 0;
  if (freed == nullptr || freed->group.native == nullptr || job().finalized.load()) return kSuccess;
  try {
    forget(freed->group);
    return kSuccess;
  } catch (const std::exception& error) {
    return fail(error.what());
  }
}

DDL_MPI_EXPORT int MPIABI_Get_library_version(char* text, int* length) {
  static const char kName[] = "DDL, for JAX";
  std::memcpy(text, kName, sizeof kName);
  *length = static_cast<int>(sizeof kName - 1);
  return kSuccess;
}

// Arrays on GPUs are not for this library.
DDL_MPI_EXPORT int MPIXABI_Query_cuda_support() { return 0; }
DDL_MPI_EXPORT int MPIXABI_Query_hip_support() { return 0; }
DDL_MPI_EXPORT int MPIXABI_Query_ze_support() { return 0; }

// Fortran has none of this.
DDL_MPI_EXPORT void mpiwrapper_export_fortran_constants_() {}

}  // extern "C"

}  // namespace mpi
}  // namespace ddl
