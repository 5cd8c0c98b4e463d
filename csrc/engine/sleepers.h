// Keeps which user threads sleep until an operation of a communicator ends, and which have ever submitted one. From
// this the agent tells the job's store what this process can still do (ddl/bootstrap/whereabouts.py).
#pragma once

#include <cstdint>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "engine/operation.h"

namespace ddl {

struct Sleeper {
  uint64_t thread;    // what Python's threading.get_ident() returns there
  uint64_t sequence;  // of the operation; 0: a send or receive
  int needs;          // the rank without which it cannot end; kNeedsAll; kNeedsUnknown

  static constexpr int kNeedsAll = -1, kNeedsUnknown = -2;
};

class Sleepers {
 public:
  explicit Sleepers(int rank) : rank_(rank) {}
  // The calling thread sleeps over the operation, until it leaves.
  void enter(const Operation& operation);
  void leave();
  std::vector<Sleeper> list() const;

 private:
  const int rank_;
  mutable Mutex mutex_;
  std::vector<Sleeper> sleepers_ DDL_GUARDED_BY(mutex_);
};

// Notes that the calling thread submits an operation, on any communicator. Costs a look at a variable of the thread.
void note_submitter();
// The threads that have done so. Some may have ended.
std::set<uint64_t> submitters();

}  // namespace ddl
