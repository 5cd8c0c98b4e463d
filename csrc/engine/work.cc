#include "engine/work.h"

#include "base/futex.h"

namespace ddl {

void Work::sleep(Nanoseconds timeout) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  if (state_.load(std::memory_order_seq_cst) == kPending) futex_wait(&state_, kPending, timeout);
  sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

void Work::finish() {
  if (state_.exchange(kDone, std::memory_order_seq_cst) != kPending) {
    throw Error(ErrorKind::kInternalError, "a work was completed twice");
  }
  if (sleepers_.load(std::memory_order_seq_cst) != 0) futex_wake(&state_);
}

void Work::complete() { finish(); }

void Work::complete(const Error& error) {
  error_ = error;
  finish();
}

}  // namespace ddl
