// Decides whether to wait awake or asleep, by whether the others are likely to come soon. It learns from how long
// earlier waits took.
//
// Two things make waits long. A slow wire makes every wait long: then a rank that sleeps loses nothing, and its core
// is free. A rank that comes late to an operation makes one wait long; after that the operation is fast. So the first
// wait of an operation that takes a millisecond counts as a late rank, and the other waits count for the wire. If it
// was the wire after all, the mistake costs nothing: the next operation's first wait is as long.
//
// Belongs to the driver of the lane.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace ddl {

class Expectation {
 public:
  bool soon() const { return long_waits_ < kMany && (late_operations_ < kMany || somebody_late_); }

  // A sleep has ended, in a wait that has taken `waited` so far. `on_sockets`: it waits for sockets. `patience`: for
  // how long it would stay awake. `late`: whether it waits for a late rank; kept by the caller until the wait ends.
  void slept(Nanoseconds waited, Nanoseconds patience, bool on_sockets, bool* late) {
    if (waited >= kLate && (*late || !somebody_late_)) {
      *late = somebody_late_ = true;
    } else if (on_sockets) {
      long_waits_ = counted(long_waits_, waited >= patience);
    }
  }

  void operation_ended() {
    late_operations_ = counted(late_operations_, somebody_late_);
    somebody_late_ = false;
  }

 private:
  static constexpr int kMany = 4;  // so many more than others: then the next one is expected to be long, too
  static constexpr Nanoseconds kLate = kMillisecond;  // a rank that is not there by then is late

  // Counts up to twice kMany, so that it forgets as quickly as it learns.
  static int counted(int so_far, bool one_more) {
    return one_more ? std::min(so_far + 1, 2 * kMany) : std::max(so_far - 1, 0);
  }

  int long_waits_ = 0;          // for sockets: how many more than short ones, lately
  int late_operations_ = 0;     // operations with a late rank: how many more than others, lately
  bool somebody_late_ = false;  // to the operation that ends next
};

}  // namespace ddl
