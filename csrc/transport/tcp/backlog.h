// How much waits in the kernel to be sent on a connection, and how fast it goes.
//
// TCP's own buffers hold many milliseconds of a slow wire. What is given to the kernel first is then not what the
// wire carries first: connections share it fairly, all messages come late, and all at once. So only little waits
// there (TCP_NOTSENT_LOWAT), and the order is ours. What is on its way is TCP's affair.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace ddl {

struct BacklogLimits {
  double seconds;  // as much waits as goes in this time,
  int least;       // but at least so many bytes
};
// Enough that the wire has something to do while the rank is busy with what has come.
constexpr BacklogLimits kOneConnection{1e-3, 64 << 10};
// Little, so that at the end of a message no rail has much more to do than the others.
constexpr BacklogLimits kOneOfRails{3e-3, 16 << 10};

class Backlog {
 public:
  Backlog(int fd, const BacklogLimits& limits);

  // The kernel takes no more just now: a moment to look how much it has carried since the last.
  void full();
  // Bytes per second that the other side has acknowledged lately; 0: not known.
  double rate() const;

 private:
  void limit(int bytes);

  const int fd_;
  const BacklogLimits limits_;
  int limit_ = 0;
  Nanoseconds measured_ = 0;
  uint64_t acknowledged_ = 0, busy_ = 0;  // bytes and microseconds, by then
  double rate_ = 0;
};

}  // namespace ddl
