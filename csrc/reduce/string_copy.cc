#include "reduce/string_copy.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/clock.h"

namespace ddl {

namespace {

// Sanitizers do not see what the instruction reads and writes.
#if defined(__x86_64__) && !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
constexpr bool kPossible = true;
#else
constexpr bool kPossible = false;
#endif

constexpr std::size_t kPage = 4096;
constexpr std::size_t kCloseBytes = 512;  // on processors that mind, closer addresses than that are slow

// What is copied lies in no core's own cache, mostly.
constexpr std::size_t kBlock = std::size_t{256} << 10, kBlocks = 8, kStride = 2 * kBlock + 2 * kPage;
constexpr int kTimes = 3;

std::size_t distance(const void* to, const void* from) {
  return (reinterpret_cast<std::uintptr_t>(to) - reinterpret_cast<std::uintptr_t>(from)) % kPage;
}

Nanoseconds time_of(CopyKernel copy, char* memory, std::size_t apart) {
  const Nanoseconds begin = now_ns();
  for (std::size_t i = 0; i < kBlocks; ++i) {
    char* const from = memory + i * kStride;
    copy(from + kBlock + apart, from, kBlock);
  }
  return now_ns() - begin;
}

// By a tenth or more, in the best of some trials: one may have been interrupted.
bool is_quicker(CopyKernel loop, char* memory, std::size_t apart) {
  Nanoseconds by_loop = kSecond, by_string = kSecond;
  for (int i = 0; i < kTimes; ++i) {
    by_loop = std::min(by_loop, time_of(loop, memory, apart));
    by_string = std::min(by_string, time_of(string_copy, memory, apart));
  }
  return by_string * 10 <= by_loop * 9;
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
  if (!kPossible) return;
  void* const memory =
      ::mmap(nullptr, kBlocks * kStride, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return;
  apart_ = is_quicker(loop, static_cast<char*>(memory), kPage / 2);
  close_ = apart_ && is_quicker(loop, static_cast<char*>(memory), 16);
  ::munmap(memory, kBlocks * kStride);
}

bool StringCopies::quicker(const void* to, const void* from) const {
  return distance(to, from) < kCloseBytes ? close_ : apart_;
}

}  // namespace ddl
