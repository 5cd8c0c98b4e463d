#include "reduce/string_copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>

#include "base/clock.h"

namespace ddl {

namespace {

// Sanitizers do not see what the instruction reads and writes.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kPossible = true;
#else
constexpr bool kPossible = false;
#endif

constexpr std::size_t kPage = 4096, kLine = 64;
constexpr std::size_t kBlock = std::size_t{128} << 10;  // bytes that are copied to measure
constexpr int kTimes = 7;

// What the two addresses differ by, without whole pages: up to where a kind goes, and where in it is measured. Arrays
// of the same allocator mostly differ by nothing, and an array and staging by what the allocator puts before it.
struct Distance {
  std::size_t below, measured;
};
constexpr Distance kKinds[] = {{1, 0}, {kLine, 16}, {512, kLine}, {kPage, kPage / 2}};

// Puts memory in no cache. It stands for lines that another core has, of which nobody knows how far away it is.
void flush(char* memory, std::size_t bytes) {
#if defined(__x86_64__)
  for (std::size_t i = 0; i < bytes; i += kLine) __builtin_ia32_clflush(memory + i);
  __builtin_ia32_mfence();
#else
  static_cast<void>(memory), static_cast<void>(bytes);
#endif
}

Nanoseconds time_of(CopyKernel copy, char* to, const char* from) {
  const Nanoseconds begin = now_ns();
  copy(to, from, kBlock);
  return now_ns() - begin;
}

// From this rank's memory to a peer's, then from a peer's to this rank's. The best of some trials: one may have been
// interrupted.
Nanoseconds both_ways(CopyKernel copy, char* to, char* from) {
  Nanoseconds there = kSecond, back = kSecond;
  for (int i = 0; i < kTimes; ++i) {
    flush(to, kBlock);
    there = std::min(there, time_of(copy, to, from));
    flush(from, kBlock);
    back = std::min(back, time_of(copy, to, from));
  }
  return there + back;
}

}  // namespace

void string_copy(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes) : : "memory");
#else
  std::memcpy(to, from, bytes);
#endif
}

StringCopies::StringCopies(CopyKernel loop) {
  static_assert(std::size(kKinds) == kDistances);
  if (!kPossible) return;
  constexpr std::size_t kAll = 2 * kBlock + kPage;
  void* const memory =
      ::mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return;
  char* const from = static_cast<char*>(memory);
  std::transform(std::begin(kKinds), std::end(kKinds), quicker_.begin(), [&](const Distance& kind) {
    char* const to = from + kBlock + kind.measured;
    return both_ways(string_copy, to, from) <= both_ways(loop, to, from);
  });
  ::munmap(memory, kAll);
}

bool StringCopies::quicker(const void* to, const void* from) const {
  const std::size_t distance =
      (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % kPage;
  const auto* const kind = std::find_if(std::begin(kKinds), std::end(kKinds),
                                        [distance](const Distance& each) { return distance < each.below; });
  return quicker_[static_cast<std::size_t>(kind - std::begin(kKinds))];
}

}  // namespace ddl
