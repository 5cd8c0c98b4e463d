#include "engine/sleepers.h"

#include <pthread.h>

#include <algorithm>

namespace ddl {

namespace {

struct Threads {
  Mutex mutex;
  std::set<uint64_t> known DDL_GUARDED_BY(mutex);
};

Threads& threads() {
  static Threads* const threads = new Threads;  // threads may run when what is static is destroyed at the end
  return *threads;
}

uint64_t this_thread() { return static_cast<uint64_t>(::pthread_self()); }

int needs(const Operation& operation, int rank) {
  const Descriptor& call = operation.descriptor;
  switch (traits(call.collective).needs) {
    case Needs::kAll:
      return Sleeper::kNeedsAll;
    case Needs::kAllIfBlocksAreEqual:
      return operation.part_lengths.size() <= 1 ? Sleeper::kNeedsAll : Sleeper::kNeedsUnknown;
    case Needs::kRoot:
      return rank != call.root ? call.root : Sleeper::kNeedsUnknown;
    case Needs::kUnknown:
      break;
  }
  return Sleeper::kNeedsUnknown;
}

}  // namespace

void Sleepers::enter(const Operation& operation) {
  const Lock lock(mutex_);
  sleepers_.push_back({this_thread(), operation.descriptor.sequence, needs(operation, rank_)});
}

void Sleepers::leave() {
  const Lock lock(mutex_);
  const auto own = std::find_if(sleepers_.begin(), sleepers_.end(),
                                [](const Sleeper& sleeper) { return sleeper.thread == this_thread(); });
  if (own != sleepers_.end()) sleepers_.erase(own);
}

std::vector<Sleeper> Sleepers::list() const {
  const Lock lock(mutex_);
  return sleepers_;
}

void note_submitter() {
  thread_local bool known = false;
  if (known) return;
  known = true;
  Threads& all = threads();
  const Lock lock(all.mutex);
  all.known.insert(this_thread());
}

std::set<uint64_t> submitters() {
  Threads& all = threads();
  const Lock lock(all.mutex);
  return all.known;
}

}  // namespace ddl
