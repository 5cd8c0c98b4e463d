// A vector clock: for each actor (a stream or a host thread), how much of what it did is known to be in the past.
//
// Two events a and b are ordered if the clock of the later one has, at the actor of the earlier one, at least the
// earlier one's time. If neither has, nothing makes them happen in the order in which they happened to happen.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fake {

class Clock {
 public:
  uint32_t at(size_t actor) const { return actor < times_.size() ? times_[actor] : 0; }

  uint32_t tick(size_t actor) {
    if (actor >= times_.size()) times_.resize(actor + 1);
    return ++times_[actor];
  }

  void join(const Clock& other) {
    if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
    for (size_t actor = 0; actor < other.times_.size(); ++actor) {
      times_[actor] = std::max(times_[actor], other.times_[actor]);
    }
  }

  // Whether all that `other` knows is known here, too.
  bool covers(const Clock& other) const {
    for (size_t actor = 0; actor < other.times_.size(); ++actor) {
      if (at(actor) < other.times_[actor]) return false;
    }
    return true;
  }

 private:
  std::vector<uint32_t> times_;
};

}  // namespace fake
