// Whether the others may be expected soon, and so waited for awake: learnt from how long earlier waits have lasted.
//
// Two things make waits long. A slow wire does it again and again: it brings as much to who sleeps, and the core is
// free. A rank that comes late to an operation does it once; when it is there, the rest is as quick as ever. So an
// operation's first wait of a millisecond is put down to somebody who is late, and the others to the wire. Where it
// was the way there that took a millisecond, the mistake costs nothing: it is as long for the next operation.
//
// Belongs to whoever drives the lane.
#pragma once

#include <algorithm>

#include "base/clock.h"

namespace ddl {

class Expectation {
 public:
  bool soon() const { return long_waits_ < kMany && (late_operations_ < kMany || somebody_late_); }

  // A sleep has ended, in a wait that has lasted `waited` so far. `on_sockets`: it waits for some; `patience`: for
  // how long it would stay awake; `late`: whether it is for somebody who is late, to be kept until the wait ends.
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
  static constexpr int kMany = 4;                     // more than others, and the next is taken to be such a one, too
  static constexpr Nanoseconds kLate = kMillisecond;  // who is not there by then was not about to come

  // Counts up to twice what is many, so that it is forgotten as quickly as learnt.
  static int counted(int so_far, bool one_more) {
    return one_more ? std::min(so_far + 1, 2 * kMany) : std::max(so_far - 1, 0);
  }

  int long_waits_ = 0;          // for sockets: how many more than short ones, lately
  int late_operations_ = 0;     // to which somebody came late: how many more than others, lately
  bool somebody_late_ = false;  // to the operation that ends next
};

}  // namespace ddl
