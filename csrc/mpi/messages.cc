// The messages that XLA sends and receives.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>

#include "engine/collectives.h"
#include "mpi/errors.h"
#include "mpi/job.h"
#include "mpi/types.h"
#include "mpi/values.h"

namespace ddl {
namespace mpi {

// A message under way. One of this rank to itself has no work: if it is received here, `from_self` is where it goes
// to.
struct Message {
  Comm* comm;
  void* work;
  void* from_self;
  size_t bytes;
};

namespace {

// Waits for all messages that are under way, as XLA leaves at the first that fails, and frees the memory of the
// others. They end soon: what has failed once lets nothing go on.
int fail_all(Comm* comm, const std::string& first) {
  const std::lock_guard<std::mutex> lock(comm->busy);
  char text[kTextRoom];
  for (Message* const message : comm->under_way) {
    if (message->work != nullptr)
      (void)job().calls.load()->wait(comm->group.native, message->work, text, sizeof text);
    delete message;
  }
  comm->under_way.clear();
  comm->to_self.clear();
  return fail_call(first);
}

int begin_message(Collective collective, const void* input, void* output, int count, int64_t datatype, int other,
                  Comm* comm, Message** request) {
  if (!usable(*comm)) return kFailed;
  Type type;
  const char* const function = collective == Collective::kSend ? "MPI_Isend" : "MPI_Irecv";
  if (!find_type(function, datatype, count, &type)) return kFailed;
  const size_t bytes = static_cast<size_t>(count) * type.bytes();
  auto begun = std::make_unique<Message>(Message{comm, nullptr, nullptr, bytes});
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

int finish_message(Message* begun) {
  const std::unique_ptr<Message> message(begun);
  Comm* const comm = message->comm;
  std::string first;
  {
    const std::lock_guard<std::mutex> lock(comm->busy);
    comm->under_way.erase(std::find(comm->under_way.begin(), comm->under_way.end(), begun));
    if (message->work != nullptr) {
      char text[kTextRoom];
      if (job().calls.load()->wait(comm->group.native, message->work, text, sizeof text) != 0) first = text;
    } else if (message->from_self != nullptr) {
      if (comm->to_self.empty() || comm->to_self.front().second != message->bytes) {
        first = "a rank receives " + std::to_string(message->bytes) + " bytes from itself that it has not sent";
      } else {
        std::memcpy(message->from_self, comm->to_self.front().first, message->bytes);
        comm->to_self.pop_front();
      }
    }
  }
  return first.empty() ? kSuccess : fail_all(comm, first);
}

}  // namespace

extern "C" {

DDL_MPI_EXPORT int MPIABI_Isend(const void* data, int count, int64_t datatype, int to, int, int64_t comm,
                                Message** request) {
  return begin_message(Collective::kSend, data, nullptr, count, datatype, to, comm_of(comm), request);
}

DDL_MPI_EXPORT int MPIABI_Irecv(void* data, int count, int64_t datatype, int from, int, int64_t comm,
                                Message** request) {
  return begin_message(Collective::kRecv, nullptr, data, count, datatype, from, comm_of(comm), request);
}

DDL_MPI_EXPORT int MPIABI_Wait(Message** request, void*) { return finish_message(*request); }

DDL_MPI_EXPORT int MPIABI_Sendrecv(const void* input, int sent, int64_t sent_type, int to, int tag, void* output,
                                   int received, int64_t received_type, int from, int, int64_t comm, void*) {
  Message *receive = nullptr, *send = nullptr;
  if (MPIABI_Irecv(output, received, received_type, from, tag, comm, &receive) != kSuccess) return kFailed;
  if (MPIABI_Isend(input, sent, sent_type, to, tag, comm, &send) != kSuccess) return kFailed;
  return finish_message(send) == kSuccess ? finish_message(receive) : kFailed;
}

}  // extern "C"

}  // namespace mpi
}  // namespace ddl
