// The functions of MPI that XLA's collectives on CPUs call, made of the calls of DDL's core: what MPItrampoline,
// which jaxlib contains, loads by MPITRAMPOLINE_LIB. Arrays stay where XLA has them.
//
// XLA makes a communicator for each group of ranks, by Comm_split, and calls it from one thread at a time, but from
// any of its threads. A function that fails returns kFailed, and Error_string says why to the thread that it failed
// in: XLA asks at once, and raises the text in the user's program.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/collectives.h"
#include "mpi/interpreter.h"
#include "mpi/names.h"
#include "mpi/values.h"

namespace ddl {
namespace mpi {
namespace {

constexpr size_t kTextRoom = 1024;  // of whoever calls Error_string

struct Request;

struct Comm {
  Group group;
  std::string broken;                                  // why it could not be made; XLA uses it all the same
  std::mutex busy;                                     // one call at a time
  std::deque<std::pair<const void*, size_t>> to_self;  // sent, and not received yet
  std::vector<Request*> under_way;
};

struct Type {
  DType dtype = DType::kUInt8;
  uint64_t width = 1;  // numbers in one element
  bool known = false;
  size_t bytes() const { return width * element_size(dtype); }
};

// A message under way, or one to this rank itself: then `from_self` is where it goes to, or null if it is the
// sender's.
struct Request {
  Comm* comm;
  void* work;
  void* from_self;
  size_t bytes;
};

struct Job {
  std::mutex starting;
  Comm world;
  std::atomic<const DdlNativeCalls*> calls{nullptr};
  std::atomic<bool> finalized{false};
  std::string problem = "MPI_Init was not called";  // while there are no calls
};

Job& job() {
  static Job* const only = new Job;  // never destroyed: threads of XLA's may use it until the process ends
  return *only;
}

thread_local std::string why;  // the last function failed

int fail(const std::string& text) {
  why = text;
  return kFailed;
}

// A call of the core has failed. JAX's own threads may end the process before the program has shown its exception, so
// the first text of the process is written at once.
int fail_call(const std::string& text) {
  static std::atomic<bool> written{false};
  if (!written.exchange(true)) std::fprintf(stderr, "ddl: %s\n", text.c_str());
  return fail(text);
}

Comm* comm_of(int64_t comm) { return comm == kWorld ? &job().world : reinterpret_cast<Comm*>(comm); }

Type type_of(int64_t type) {
  const bool is_complex = type >= kFirstComplex && type < kFirstComplex + kDTypeCount;
  const bool is_real = type >= kFirstType && type < kFirstType + kDTypeCount;
  if (!is_complex && !is_real) return {};
  return {static_cast<DType>(type - (is_complex ? kFirstComplex : kFirstType)), is_complex ? 2U : 1U, true};
}

bool started() {
  if (job().calls.load() != nullptr) return true;
  const std::lock_guard<std::mutex> lock(job().starting);
  why = job().problem;
  return false;
}

int unknown_type(const char* function, int64_t type) {
  return fail(std::string(function) + ": DDL does not know MPI's data type number " + std::to_string(type));
}

bool usable(const Comm& comm) {
  if (!started()) return false;
  if (comm.broken.empty()) return true;
  why = comm.broken;
  return false;
}

int run(Comm* comm, const DdlNativeCall& call) {
  if (!usable(*comm)) return kFailed;
  if (call.count == 0) return kSuccess;  // on all ranks
  char text[kTextRoom];
  const std::lock_guard<std::mutex> lock(comm->busy);
  return job().calls.load()->run(comm->group.native, &call, text, sizeof text) == 0 ? kSuccess : fail_call(text);
}

DdlNativeCall call_of(Collective collective, const Type& type, const void* input, void* output, uint64_t elements) {
  const uint64_t count = elements * type.width;
  return {static_cast<int32_t>(collective), 0, static_cast<int32_t>(type.dtype), 0, input, output, count, 0};
}

// Sets the operator; false, and why, if the elements cannot be combined by it.
bool set_op(const char* function, int64_t op, const Type& type, DdlNativeCall* call) {
  const int64_t number = op - kFirstOp;
  if (number < 0 || number >= kReduceOpCount) {
    why = std::string(function) + ": DDL has no operator for MPI's number " + std::to_string(op);
    return false;
  }
  if (type.width > 1 && static_cast<ReduceOp>(number) != ReduceOp::kSum) {
    why = std::string(function) + ": complex numbers can be summed only";
    return false;
  }
  call->op = static_cast<int32_t>(number);
  return true;
}

// Waits for all messages that are under way, as XLA leaves at the first that fails, and frees the memory of the
// others. They end soon: what has failed once lets nothing go on.
int fail_all(Comm* comm, const std::string& first) {
  const std::lock_guard<std::mutex> lock(comm->busy);
  char text[kTextRoom];
  for (Request* const request : comm->under_way) {
    if (request->work != nullptr)
      (void)job().calls.load()->wait(comm->group.native, request->work, text, sizeof text);
    delete request;
  }
  comm->under_way.clear();
  comm->to_self.clear();
  return fail_call(first);
}

int begin_message(Collective collective, const void* input, void* output, int count, int64_t datatype, int other,
                  Comm* comm, Request** request) {
  if (!usable(*comm)) return kFailed;
  const Type type = type_of(datatype);
  if (!type.known) return unknown_type(input != nullptr ? "MPI_Isend" : "MPI_Irecv", datatype);
  const size_t bytes = static_cast<size_t>(count) * type.bytes();
  auto begun = std::make_unique<Request>(Request{comm, nullptr, nullptr, bytes});
  std::string first;
  {
    const std::lock_guard<std::mutex> lock(comm->busy);
    if (other == comm->group.rank) {
      if (collective == Collective::kSend) comm->to_self.emplace_back(input, bytes);
      begun->from_self = output;
    } else if (bytes > 0) {
      DdlNativeCall call = call_of(collective, type, input, output, static_cast<uint64_t>(count));
      call.root = other;
      char text[kTextRoom];
      if (job().calls.load()->start(comm->group.native, &call, &begun->work, text, sizeof text) != 0) first = text;
    }
    if (first.empty()) comm->under_way.push_back(begun.get());
  }
  if (!first.empty()) return fail_all(comm, first);
  *request = begun.release();
  return kSuccess;
}

int finish_message(Request* begun) {
  const std::unique_ptr<Request> request(begun);
  Comm* const comm = request->comm;
  std::string first;
  {
    const std::lock_guard<std::mutex> lock(comm->busy);
    comm->under_way.erase(std::find(comm->under_way.begin(), comm->under_way.end(), begun));
    if (request->work != nullptr) {
      char text[kTextRoom];
      if (job().calls.load()->wait(comm->group.native, request->work, text, sizeof text) != 0) first = text;
    } else if (request->from_self != nullptr) {
      if (comm->to_self.empty() || comm->to_self.front().second != request->bytes) {
        first = "a rank receives " + std::to_string(request->bytes) + " bytes from itself that it has not sent";
      } else {
        std::memcpy(request->from_self, comm->to_self.front().first, request->bytes);
        comm->to_self.pop_front();
      }
    }
  }
  return first.empty() ? kSuccess : fail_all(comm, first);
}

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
  return started() ? kSuccess : kFailed;
}

DDL_MPI_EXPORT int MPIABI_Comm_size(int64_t comm, int* size) {
  *size = comm_of(comm)->group.size;
  return started() ? kSuccess : kFailed;
}

// XLA does not look at the status, so `*part` is a communicator in any case; if it could not be made, each call says
// why.
DDL_MPI_EXPORT int MPIABI_Comm_split(int64_t comm, int color, int key, int64_t* part) {
  auto made = std::make_unique<Comm>();
  try {
    if (!started()) throw std::runtime_error(why);
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

DDL_MPI_EXPORT int MPIABI_Allreduce(const void* input, void* output, int count, int64_t datatype, int64_t op,
                                    int64_t comm) {
  const Type type = type_of(datatype);
  if (!type.known) return unknown_type("MPI_Allreduce", datatype);
  const void* const from = reinterpret_cast<int64_t>(input) == kInPlace ? output : input;
  DdlNativeCall call = call_of(Collective::kAllreduce, type, from, output, static_cast<uint64_t>(count));
  return set_op("MPI_Allreduce", op, type, &call) ? run(comm_of(comm), call) : kFailed;
}

DDL_MPI_EXPORT int MPIABI_Allgather(const void* input, int, int64_t, void* output, int count, int64_t datatype,
                                    int64_t comm) {
  const Type type = type_of(datatype);
  if (!type.known) return unknown_type("MPI_Allgather", datatype);
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
  const Type type = type_of(datatype);
  if (!type.known) return unknown_type("MPI_Reduce_scatter", datatype);
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

DDL_MPI_EXPORT int MPIABI_Isend(const void* data, int count, int64_t datatype, int to, int, int64_t comm,
                                Request** request) {
  return begin_message(Collective::kSend, data, nullptr, count, datatype, to, comm_of(comm), request);
}

DDL_MPI_EXPORT int MPIABI_Irecv(void* data, int count, int64_t datatype, int from, int, int64_t comm,
                                Request** request) {
  return begin_message(Collective::kRecv, nullptr, data, count, datatype, from, comm_of(comm), request);
}

DDL_MPI_EXPORT int MPIABI_Wait(Request** request, void*) { return finish_message(*request); }

DDL_MPI_EXPORT int MPIABI_Sendrecv(const void* input, int sent, int64_t sent_type, int to, int tag, void* output,
                                   int received, int64_t received_type, int from, int, int64_t comm, void*) {
  Request *receive = nullptr, *send = nullptr;
  if (MPIABI_Irecv(output, received, received_type, from, tag, comm, &receive) != kSuccess) return kFailed;
  if (MPIABI_Isend(input, sent, sent_type, to, tag, comm, &send) != kSuccess) return kFailed;
  return finish_message(send) == kSuccess ? finish_message(receive) : kFailed;
}

DDL_MPI_EXPORT int MPIABI_Error_string(int, char* text, int* length) {
  const size_t room = std::min(why.size(), kTextRoom - 1);
  std::memcpy(text, why.data(), room);
  text[room] = 0;
  *length = static_cast<int>(room);
  return kSuccess;
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

#define DDL_MPI_FAILING(name) \
  DDL_MPI_EXPORT int MPIABI_##name() { return fail("MPI_" #name ": DDL offers what JAX calls, and not this"); }
DDL_MPI_UNUSED_FUNCTIONS(DDL_MPI_FAILING)

}  // extern "C"

}  // namespace mpi
}  // namespace ddl
