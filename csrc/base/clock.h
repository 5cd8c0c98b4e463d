// Monotonic time in nanoseconds, and the pause of a spinning core.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace ddl {

using Nanoseconds = int64_t;
constexpr Nanoseconds kMicrosecond = 1000;
constexpr Nanoseconds kMillisecond = 1000 * kMicrosecond;
constexpr Nanoseconds kSecond = 1000 * kMillisecond;

// How far tests have shifted the clock of this process: hours pass in no time.
inline std::atomic<Nanoseconds> clock_shift{0};

// The one clock of the core. Only differences mean anything, between processes of a host, too.
inline Nanoseconds now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
             .count() +
         clock_shift.load(std::memory_order_relaxed);
}

inline void cpu_pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ddl
