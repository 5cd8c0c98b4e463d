// Where the ranks of limit.cc meet: a counter for each on cache lines of its own, in shared memory.
#pragma once

#include <sched.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "common.h"
#include "probe.h"

namespace limit {

constexpr int kMostRanks = 64;

// A counter on cache lines of its own (two, since processors fetch them in pairs).
struct alignas(128) Counter {
  std::atomic<uint64_t> value;
};

struct Board {
  Counter arrived[kMostRanks];
  Counter failed;
  Counter choice;
};

// Where ranks meet. More ranks than cores: a rank that waits gives up its core at once.
class Meeting {
 public:
  Meeting(Board* board, int rank, int ranks)
      : board_(board), rank_(rank), ranks_(ranks), yields_(ranks > sysconf(_SC_NPROCESSORS_ONLN)) {}

  void meet() {
    board_->arrived[rank_].value.store(++round_, std::memory_order_release);
    for (int other = 0; other < ranks_; other++) {
      for (int spins = 1; board_->arrived[other].value.load(std::memory_order_acquire) < round_; spins++) {
        if (yields_) {
          sched_yield();
        } else {
          pause_briefly();
        }
        if (spins % 4096 == 0 && board_->failed.value.load(std::memory_order_relaxed) != 0) std::_Exit(1);
      }
    }
  }

  // What rank 0 says, on every rank.
  bool agree(bool own) {
    if (rank_ == 0) board_->choice.value.store(own);
    meet();
    const bool agreed = board_->choice.value.load() != 0;
    meet();
    return agreed;
  }

  [[noreturn]] void fail(const std::string& why) {
    board_->failed.value.store(1);
    die(why);
  }

 private:
  Board* board_;
  int rank_, ranks_;
  bool yields_;
  uint64_t round_ = 0;
};

}  // namespace limit
