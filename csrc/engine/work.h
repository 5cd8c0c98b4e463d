// Whether an operation is done. It completes exactly once, with success or with an error. Any thread may wait.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "base/error.h"

namespace ddl {

class Work {
 public:
  bool done() const { return state_.load(std::memory_order_acquire) != kPending; }
  // Call only when done. Throws the error, if it ended with one.
  void check() const {
    if (error_) throw *error_;
  }
  // Sleeps until it is done, or `timeout` has passed. It may return earlier.
  void sleep(Nanoseconds timeout);

  void complete();
  void complete(const Error& error);
  // Makes it ready for another operation. Call only when no thread waits.
  void rewind() {
    error_.reset();
    state_.store(kPending, std::memory_order_relaxed);
  }

 private:
  static constexpr uint32_t kPending = 0, kDone = 1;
  void finish();

  std::atomic<uint32_t> state_{kDone};
  std::atomic<uint32_t> sleepers_{0};
  std::optional<Error> error_;  // written before state_ is released
};

}  // namespace ddl
