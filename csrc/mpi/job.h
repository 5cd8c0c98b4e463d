// The job of this process, and XLA's communicators in it.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "mpi/interpreter.h"

namespace ddl {
namespace mpi {

struct Message;  // messages.cc

struct Comm {
  Group group;
  std::string broken;                                  // why it could not be made; XLA uses it all the same
  std::mutex busy;                                     // one call at a time
  std::deque<std::pair<const void*, size_t>> to_self;  // sent, and not received yet
  std::vector<Message*> under_way;
};

struct Job {
  std::mutex starting;
  Comm world;
  std::atomic<const DdlNativeCalls*> calls{nullptr};
  std::atomic<bool> finalized{false};
  std::string problem = "MPI_Init was not called";  // while there are no calls
};

Job& job();

Comm* comm_of(int64_t comm);

// Returns whether it can be called. If not, Error_string says why.
bool usable(const Comm& comm);

}  // namespace mpi
}  // namespace ddl
