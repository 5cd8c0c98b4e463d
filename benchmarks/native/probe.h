// How far apart two ranks' cores are at this moment: the round trip of a cache line between them.
//
// A hypervisor may move a machine's cores about, onto one physical core, one cache, or two sockets, and nothing
// inside shows it; but every figure changes by up to a factor of four. So ranks 0 and 1 probe before and after each
// measurement, and only what was measured at the same distance is compared (../regimes.py).
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace limit {

inline void pause_briefly() {
#ifdef __SSE2__
  _mm_pause();
#endif
}

inline double now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return 1e9 * static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec);
}

class Probe {
 public:
  // Maps `path`, a file of zeros of at least 4096 bytes that all ranks name; an empty path: no probing.
  Probe(const char* path, int rank) : rank_(rank) {
    const int fd = rank < 2 && path[0] != '\0' ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory != MAP_FAILED) board_ = static_cast<std::atomic<uint64_t>*>(memory);
  }

  // Returns nanoseconds; 0 where nothing is probed or the other side does not answer within a second. Ranks 0 and 1
  // call it equally often; a count says which call it belongs to, so that one that failed does not spoil the next.
  double round_trip() {
    if (board_ == nullptr) return 0;
    uint64_t count = ++calls_ << 32;
    const uint64_t next = (calls_ + 1) << 32;
    std::atomic<uint64_t>& own = board_[rank_ == 0 ? 0 : kApart];
    const std::atomic<uint64_t>& theirs = board_[rank_ == 0 ? kApart : 0];
    double best = 0;
    for (int batch = 0; batch < kBatches; batch++) {
      const double start = now_ns();
      for (int i = 0; i < kRounds; i++) {
        count++;
        if (rank_ == 0) own.store(count, std::memory_order_release);
        uint64_t seen = theirs.load(std::memory_order_acquire);
        for (int spins = 1; seen < count; spins++) {
          if (spins % 65536 == 0 && now_ns() - start > 1e9) return 0;
          seen = theirs.load(std::memory_order_acquire);
        }
        if (seen >= next) return 0;
        if (rank_ == 1) own.store(count, std::memory_order_release);
      }
      const double round_trip = (now_ns() - start) / kRounds;
      if (best == 0 || round_trip < best) best = round_trip;
    }
    return best;
  }

 private:
  static constexpr int kBatches = 8, kRounds = 200;  // 0.1 to 1 ms; the best batch is free of interruptions
  static constexpr int kApart = 32;                  // the two counters' distance in words: lines of their own
  std::atomic<uint64_t>* board_ = nullptr;
  const int rank_;
  uint64_t calls_ = 0;
};

}  // namespace limit
