// How many unfinished commands a stream may have.
//
// While a stream waits, it takes some 1,000 commands (an H200 with driver 580: 1,021). Then the driver blocks whoever
// queues another one until the stream goes on. DDL uses at most half of that. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>

namespace ddl {

class Room {
 public:
  static constexpr int64_t kCommands = 512;

  // Takes room for so many, and returns true; false: there is not enough now. One larger than any room must be alone.
  bool take(int64_t commands) {
    int64_t taken = taken_.load(std::memory_order_relaxed);
    do {
      if (taken != 0 && taken + commands > kCommands) return false;
    } while (!taken_.compare_exchange_weak(taken, taken + commands, std::memory_order_relaxed));
    return true;
  }
  void give_back(int64_t commands) { taken_.fetch_sub(commands, std::memory_order_relaxed); }

 private:
  std::atomic<int64_t> taken_{0};
};

}  // namespace ddl
