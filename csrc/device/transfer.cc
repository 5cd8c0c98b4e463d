#include "device/transfer.h"

#include <utility>

#include "device/gpu.h"
#include "device/slabs.h"

namespace ddl {

Transfer::Transfer(CopyStreams* streams, StagedArray in, StagedArray out, uint64_t pieces)
    : streams_(streams),
      gpu_(streams->gpu_.get()),
      driver_(gpu_->driver_),
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

void Transfer::take_staging(bool ordered) {
  Slabs& slabs = Slabs::process();
  const bool same = in_.device == out_.device && in_.bytes == out_.bytes;
  try {
    arrived_ = Words::process().take(driver_);
    end_down_ = gpu_->take_event();
    end_up_ = gpu_->take_event();
    bool registered = true;
    const auto take = [&](uint64_t bytes) {
      const Slabs::Part part = slabs.allocate(driver_, bytes);
      registered &= part.registered;
      return part.memory;
    };
    if (in_.bytes > 0) in_.host = take(in_.bytes);
    if (out_.bytes > 0) out_.host = same ? in_.host : take(out_.bytes);
    // A copy from or to memory that is not registered may block the caller: behind a wait it would do so for ever.
    if (ordered && registered && Driver::waits_on_gpu() && gpu_->writes_words_ && arrived_.address != 0) {
      departed_ = Words::process().take(driver_);
      behind_words_ = departed_.address != 0;
    }
  } catch (...) {
    give_staging_back();
    throw;
  }
}

void Transfer::queue_down() {
  const StreamHandle down = streams_->down_;
  const bool by_words = gpu_->writes_words_ && arrived_.address != 0;
  for (uint64_t piece = 0; piece < pieces_; ++piece) {
    if (in_.host != nullptr) {
      for (const Range& range : in_.pieces[piece]) {
        driver_.copy_down(in_.host + range.offset, in_.device + range.offset, range.bytes, down);
      }
    }
    if (by_words) {
      driver_.write_word(down, arrived_.address, arrived_.base + static_cast<uint32_t>(piece) + 1);
    } else {
      arrivals_.push_back(gpu_->take_event());
      driver_.record(arrivals_.back(), down);
    }
  }
  driver_.record(end_down_, down);
  downs_recorded_ = true;
  if (behind_words_) queue_up_behind_words();
}

// Everything that must happen before a wait is over was queued before it: all copies down. A piece has left only
// after it has arrived; but if the operation is abandoned, nothing may be written before the producers have ended
// either.
void Transfer::queue_up_behind_words() {
  const StreamHandle up = streams_->up_;
  for (uint64_t piece = 0; piece < pieces_; ++piece) {
    const auto number = static_cast<uint32_t>(piece) + 1;
    driver_.wait_for_word(up, arrived_.address, arrived_.base + number);
    driver_.wait_for_word(up, departed_.address, departed_.base + number);
    copy_up(piece);
  }
  returned_ = pieces_;
  driver_.record(end_up_, up);
  ending_ = true;
}

void Transfer::copy_up(uint64_t piece) {
  if (out_.host == nullptr) return;
  for (const Range& range : out_.pieces[piece]) {
    driver_.copy_up(out_.device + range.offset, out_.host + range.offset, range.bytes, streams_->up_);
  }
}

bool Transfer::wait_on(StreamHandle stream) {
  if (!behind_words_) return false;
  const Lock lock(ordering_);
  if (ended()) {
    finish();
    return true;
  }
  try {
    const Driver::Current current(driver_, gpu_->context_);
    driver_.wait(stream, end_up_);
  } catch (const DriverError& error) {
    throw gpu_->failure(error);
  }
  return true;
}

// --- the lane ---

bool Transfer::arrived(uint64_t piece) {
  if (failed_.load(std::memory_order_acquire)) return true;
  if (!arrived_.reached(static_cast<uint32_t>(piece) + 1)) return false;
  if (noted_ > piece) return true;
  for (; noted_ <= piece; ++noted_) {
    driver_.note_acquire_at_least(arrived_.value, arrived_.base + static_cast<uint32_t>(noted_) + 1);
    for (const StagedArray* array : {&in_, &out_}) {
      if (array->host == nullptr) continue;
      for (const Range& range : array->pieces[noted_]) {
        driver_.note_access(array->host + range.offset, range.bytes, array == &out_, "lane");
      }
    }
  }
  driver_.note_release(&noted_);  // the piece may leave by another thread, which drives the lane after this one
  return true;
}

void Transfer::check() {
  if (failed_.load(std::memory_order_acquire)) throw *error_;
}

void Transfer::left(uint64_t piece) {
  driver_.note_acquire(&noted_);
  driver_.note_release(&left_[piece]);
  left_[piece].store(true, std::memory_order_release);
  if (!behind_words_) {
    gpu_->kick();
    return;
  }
  while (gapless_ < pieces_ && left_[gapless_].load(std::memory_order_relaxed)) ++gapless_;
  release_streams(gapless_);
  if (gapless_ == pieces_) gpu_->kick();
}

void Transfer::release_streams(uint64_t pieces) {
  driver_.note_release(departed_.value);
  departed_.value->store(departed_.base + static_cast<uint32_t>(pieces), std::memory_order_release);
}

void Transfer::abandon() {
  abandoned_.store(true, std::memory_order_release);
  if (behind_words_) release_streams(pieces_);
  gpu_->kick();
}

void Transfer::cancel() {
  cancelled_.store(true, std::memory_order_relaxed);
  abandon();
}

bool Transfer::ended() const {
  if (!end_.done()) return false;
  driver_.note_acquire(&end_);
  return true;
}

void Transfer::finish() {
  driver_.note_acquire(&end_);
  check();
}

// --- the GPU's thread ---

bool Transfer::progress(bool* waits) {
  try {
    // Before the pieces that have left are looked at: what leaves before it is abandoned is seen then, and nothing
    // leaves afterwards. So no copy up comes behind the end.
    const bool abandoned = abandoned_.load(std::memory_order_acquire);
    bool moved = ask_arrivals(waits);
    if (!behind_words_) moved |= queue_up();
    return ask_end(abandoned, waits) || moved;
  } catch (const DriverError& error) {
    fail(error);
    return true;
  }
}

// Copies down end in their order.
bool Transfer::ask_arrivals(bool* waits) {
  if (downs_ended_) return false;
  if (!downs_recorded_) {  // a call was refused in the middle
    driver_.record(end_down_, streams_->down_);
    downs_recorded_ = true;
  }
  const uint64_t before = asked_;
  while (asked_ < arrivals_.size() && driver_.ended(arrivals_[asked_])) ++asked_;
  if (asked_ != before) {
    driver_.note_release(arrived_.value);
    arrived_.value->store(arrived_.base + static_cast<uint32_t>(asked_), std::memory_order_release);
  }
  // Also the sign by which a GPU that has failed is noticed: it writes no more words.
  downs_ended_ = asked_ == arrivals_.size() && driver_.ended(end_down_);
  *waits |= !downs_ended_;
  return asked_ != before;
}

bool Transfer::queue_up() {
  const uint64_t before = returned_;
  for (uint64_t piece = 0; piece < pieces_; ++piece) {
    if (queued_[piece] || !left_[piece].load(std::memory_order_acquire)) continue;
    driver_.note_acquire(&left_[piece]);
    copy_up(piece);
    queued_[piece] = true;
    ++returned_;
  }
  return returned_ != before;
}

bool Transfer::ask_end(bool abandoned, bool* waits) {
  if (!ending_) {
    if (returned_ < pieces_ && !abandoned) return false;
    driver_.record(end_up_, streams_->up_);
    ending_ = true;
  }
  // Copies down of an operation that failed may still be under way.
  if (!downs_ended_ || !driver_.ended(end_up_)) {
    // While other ranks are awaited, nothing of the GPU's can have ended.
    *waits |= !behind_words_ || departed_.reached(static_cast<uint32_t>(pieces_));
    return false;
  }
  // After a failure other ranks may still write to the staging, as to any array of the operation: it is not used
  // again.
  if (abandoned && !cancelled_.load(std::memory_order_relaxed)) in_.host = out_.host = nullptr;
  const Lock lock(ordering_);
  give_staging_back();
  driver_.note_release(&end_);
  end_.complete();
  return true;
}

void Transfer::give_staging_back() {
  for (EventHandle event : {end_down_, end_up_}) {
    if (event != nullptr) gpu_->give_back(event);
  }
  for (EventHandle event : arrivals_) gpu_->give_back(event);
  for (const Words::Word& word : {arrived_, departed_}) {
    if (word.value != nullptr) Words::process().give_back(word, static_cast<uint32_t>(pieces_));
  }
  Slabs& slabs = Slabs::process();
  if (in_.host != nullptr) slabs.free(driver_, in_.host);
  if (out_.host != nullptr && out_.host != in_.host) slabs.free(driver_, out_.host);
}

// What the GPU does with the array and with the staging nobody knows from now on: neither is used again.
void Transfer::fail(const DriverError& error) {
  error_ = gpu_->failure(error);
  failed_.store(true, std::memory_order_release);
  end_.complete(*error_);
}

}  // namespace ddl
