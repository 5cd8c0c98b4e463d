// Sleeping on a 32-bit word in memory that other processes have mapped, too.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

#include "base/clock.h"

namespace ddl {

// Sleeps while *word == expected, at most `timeout`. It may return earlier.
inline void futex_wait(std::atomic<uint32_t>* word, uint32_t expected, Nanoseconds timeout) {
  timespec limit{static_cast<time_t>(timeout / kSecond), static_cast<long>(timeout % kSecond)};
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAIT, expected, &limit, nullptr, 0);
}

// Sleeps for about so long, where nobody can wake it.
inline void nap(Nanoseconds time) {
  std::atomic<uint32_t> word{0};
  futex_wait(&word, 0, time);
}

inline void futex_wake(std::atomic<uint32_t>* word) {
  ::syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace ddl
