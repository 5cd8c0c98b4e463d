// Asks for memory some time before a loop comes to it. What a processor fetches by itself ends at each border of a
// 4 KiB page, and comes late for lines that another core has written.
#pragma once

#include <cstddef>

namespace ddl {
namespace {

constexpr std::size_t kPrefetchAhead = 2048;  // bytes; 1024 to 4096 make no difference
constexpr std::size_t kCacheLine = 64;
// Shorter loops mostly find their memory in the first cache, and are a twentieth slower with it.
constexpr std::size_t kWorthPrefetching = std::size_t{64} << 10;

// Up to where a loop over `bytes` should prefetch: never beyond its end, where another rank may write.
inline std::size_t prefetch_until(std::size_t bytes) {
  return bytes < kWorthPrefetching ? 0 : bytes - kPrefetchAhead;
}

inline void prefetch_to_read(const char* from, std::size_t bytes) {
#pragma GCC unroll 8
  for (std::size_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(from + i + kPrefetchAhead, 0);
}

// A line that another core holds is asked of it once, not twice.
inline void prefetch_to_write(const char* to, std::size_t bytes) {
#pragma GCC unroll 8
  for (std::size_t i = 0; i < bytes; i += kCacheLine) __builtin_prefetch(to + i + kPrefetchAhead, 1);
}

}  // namespace
}  // namespace ddl
