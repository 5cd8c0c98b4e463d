#include "device/transfer.h"

#include <utility>

#include "device/gpu.h"
#include "device/slabs.h"

namespace ddl {

Transfer::Transfer(Gpu* gpu, StagedArray in, StagedArray out, uint64_t pieces)
    : gpu_(gpu),
      driver_(gpu->driver_),
      in_(std::move(in)),
      out_(std::move(out)),
      pieces_(pieces),
      queued_(pieces),
      left_(new std::atomic<bool>[pieces]) {
  for (uint64_t piece = 0; piece < pieces; ++piece) left_[piece].store(false, std::memory_order_relaxed);
  end_.rewind();
}

Transfer::~Transfer() = default;

// --- the submitting thread ---

void Transfer::queue_down() {
  end_down_ = gpu_->take_event();
  end_up_ = gpu_->take_event();
  for (uint64_t piece = 0; piece < pieces_; ++piece) {
    if (in_.host != nullptr) {
      for (const Range& range : in_.pieces[piece]) {
        driver_.copy_down(in_.host + range.offset, in_.device + range.offset, range.bytes, gpu_->down_);
      }
    }
    arrivals_.push_back(gpu_->take_event());
    driver_.record(arrivals_.back(), gpu_->down_);
  }
}

// --- the lane ---

bool Transfer::arrived(uint64_t piece) {
  if (failed_.load(std::memory_order_acquire)) return true;
  const uint64_t arrived = arrived_.load(std::memory_order_acquire);
  if (arrived <= piece) return false;
  if (noted_ < arrived) driver_.note_acquire(this);
  for (; noted_ < arrived; ++noted_) {
    for (const StagedArray* array : {&in_, &out_}) {
      if (array->host == nullptr) continue;
      for (const Range& range : array->pieces[noted_]) {
        driver_.note_access(array->host + range.offset, range.bytes, array == &out_, "lane");
      }
    }
  }
  return true;
}

void Transfer::check() {
  if (failed_.load(std::memory_order_acquire)) throw *error_;
}

void Transfer::left(uint64_t piece) {
  driver_.note_release(&left_[piece]);
  left_[piece].store(true, std::memory_order_release);
  gpu_->kick();
}

void Transfer::abandon() {
  abandoned_.store(true, std::memory_order_release);
  gpu_->kick();
}

void Transfer::cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  abandon();
}

void Transfer::finish() {
  driver_.note_acquire(&end_);
  end_.check();
}

// --- the GPU's thread ---

bool Transfer::progress(bool* waits) {
  try {
    // Before the pieces that have left are looked at: what leaves before it is abandoned is seen then, and nothing
    // leaves afterwards. So no copy up comes behind the end.
    const bool abandoned = abandoned_.load(std::memory_order_acquire);
    bool moved = ask_arrivals(waits);
    if (!ending_) moved |= queue_up();
    return ask_end(abandoned, waits) || moved;
  } catch (const Error& error) {
    fail(error);
    return true;
  }
}

// Copies down end in their order.
bool Transfer::ask_arrivals(bool* waits) {
  const uint64_t before = asked_;
  while (asked_ < pieces_ && driver_.ended(arrivals_[asked_])) gpu_->give_back(arrivals_[asked_++]);
  *waits |= asked_ < pieces_;
  if (asked_ == before) return false;
  driver_.note_release(this);
  arrived_.store(asked_, std::memory_order_release);
  return true;
}

bool Transfer::queue_up() {
  const uint64_t before = returned_;
  for (uint64_t piece = 0; piece < pieces_; ++piece) {
    if (queued_[piece] || !left_[piece].load(std::memory_order_acquire)) continue;
    driver_.note_acquire(&left_[piece]);
    if (out_.host != nullptr) {
      for (const Range& range : out_.pieces[piece]) {
        driver_.copy_up(out_.device + range.offset, out_.host + range.offset, range.bytes, gpu_->up_);
      }
    }
    queued_[piece] = true;
    ++returned_;
  }
  return returned_ != before;
}

bool Transfer::ask_end(bool abandoned, bool* waits) {
  if (!ending_) {
    if (returned_ < pieces_ && !abandoned) return false;
    // Copies down of an operation that failed may still be under way; otherwise all of them were seen to end.
    downs_ended_ = asked_ == pieces_;
    if (!downs_ended_) driver_.record(end_down_, gpu_->down_);
    driver_.record(end_up_, gpu_->up_);
    ending_ = true;
  }
  if ((!downs_ended_ && !driver_.ended(end_down_)) || !driver_.ended(end_up_)) {
    *waits = true;
    return false;
  }
  for (EventHandle event : {end_down_, end_up_}) gpu_->give_back(event);
  for (; asked_ < pieces_; ++asked_) gpu_->give_back(arrivals_[asked_]);
  // After a failure other ranks may still write to the staging, as to any array of the operation: it is not used
  // again.
  if (!abandoned || cancelled_.load(std::memory_order_relaxed)) {
    Slabs& slabs = Slabs::process();
    if (in_.host != nullptr) slabs.free(driver_, in_.host);
    if (out_.host != nullptr && out_.host != in_.host) slabs.free(driver_, out_.host);
  }
  driver_.note_release(&end_);
  end_.complete();
  return true;
}

// The GPU has failed, for good: what it does with its memory and with the staging nobody knows.
void Transfer::fail(const Error& error) {
  error_ = Error(error.kind(), gpu_->failure(error));
  failed_.store(true, std::memory_order_release);
  end_.complete(*error_);
}

}  // namespace ddl
