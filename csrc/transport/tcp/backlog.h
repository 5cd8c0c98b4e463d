// Limits how much waits in the kernel to be sent on a connection, and measures how fast the connection is.
//
// TCP's buffers hold what a slow wire sends in many milliseconds. If all connections filled them, they would share
// the wire evenly, and all messages would arrive late, at the same time. So only little waits in the kernel
// (TCP_NOTSENT_LOWAT), and DDL decides what goes next. What TCP has already sent does not count.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace ddl {

struct BacklogLimits {
  double seconds;  // what the connection carries in this time may wait,
  int least;       // and at least so many bytes
};
// Enough to keep the wire busy while the rank works on what has come.
constexpr BacklogLimits kOneConnection{1e-3, 64 << 10};
// Less, so that all rails end a message at about the same time.
constexpr BacklogLimits kOneOfRails{3e-3, 16 << 10};

class Backlog {
 public:
  Backlog(int fd, const BacklogLimits& limits);

  // Call when the kernel takes no more. Measures how much it has carried since the last call.
  void full();
  // Bytes per second that the other side has acknowledged lately. 0: not known.
  double rate() const;

 private:
  void limit(int bytes);

  const int fd_;
  const BacklogLimits limits_;
  int limit_ = 0;
  Nanoseconds measured_ = 0;
  uint64_t acknowledged_ = 0, busy_ = 0;  // bytes, and microseconds, at that time
  double rate_ = 0;
};

}  // namespace ddl
