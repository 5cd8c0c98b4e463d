// The ledger: who read and wrote which memory, and whether anything ordered it. It proves what a lucky run cannot.
//
// Each access has a range of addresses (host memory, or device addresses, which are no host memory of this process),
// its actor's clock, and a name for the complaint. Two accesses of overlapping ranges, at least one of them a write,
// must be ordered by their clocks; otherwise that is a violation, whatever the timing was. Words are where actors
// meet: tokens of host threads, and flags that streams write and wait for. All of it is guarded by the driver's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "clock.h"

namespace fake {

// A flag is written and waited for as an atomic: two such accesses need no order. A plain access beside it does.
enum class AccessKind { kRead, kWrite, kAtomicRead, kAtomicWrite };

struct Range {
  uintptr_t begin = 0, end = 0;

  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
  bool contains(const Range& other) const { return begin <= other.begin && other.end <= end; }
};

struct Access {
  Range range;
  AccessKind kind;
  size_t actor;
  uint32_t time;    // of the actor
  std::string who;  // the call and its number, or what the host thread calls itself
  std::string where;
};

class Ledger {
 public:
  size_t add_actor(std::string name);
  const std::string& name(size_t actor) const { return actors_[actor]; }

  // Checks the access against all earlier ones, and keeps it. `clock`: what is in the past of the access.
  void note(Access access, const Clock& clock);
  // The memory gets a new life: what ended the former one is forgotten, since what made it known is not seen here.
  void renew(const Range& range, const std::string& end);

  // What waits for a word to have at least `value` knows the clock afterwards.
  void stamp(uintptr_t word, uint32_t value, const Clock& clock);
  void join_at_least(uintptr_t word, uint32_t value, Clock* clock) const;
  // A token has no value: all who acquire it know what all who released it knew.
  void release(uintptr_t word, const Clock& clock);
  void acquire(uintptr_t word, Clock* clock) const;

  void complain(std::string text);
  const std::deque<std::string>& violations() const { return violations_; }
  size_t entries() const { return accesses_.size(); }

 private:
  struct Word {
    Clock released;
    std::vector<std::pair<uint32_t, Clock>> stamps;  // in the order of the writes
  };

  std::string text(const Access& access) const;

  std::vector<std::string> actors_;
  std::deque<Access> accesses_;
  std::map<uintptr_t, Word> words_;
  std::deque<std::string> violations_;
};

}  // namespace fake
