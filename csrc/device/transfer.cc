#include "device/transfer.h"

#include <algorithm>
#include <utility>

#include "device/gpu.h"
#include "device/slabs.h"

namespace ddl {

namespace {

constexpr uint64_t kMostBatches = 64;

// How many commands the copies of an array are, each batch with `others` beside them.
int64_t commands_of(const StagedArray& array, uint64_t batches, uint64_t others) {
  uint64_t commands = batches * others + 1;  // the last one is an event's record
  for (const Ranges& ranges : array.batches) commands += ranges.size();
  return static_cast<int64_t>(commands);
}

}  // namespace

Batches Batches::of(uint64_t pieces, uint64_t ranges) {
  // Of the room of a stream, an operation takes half at most, if it can: for each batch its copies, and two waits.
  const uint64_t most = std::max<uint64_t>(1, std::min<uint64_t>(kMostBatches, Room::kCommands / 2 / (ranges + 2)));
  return {pieces, std::max<uint64_t>(1, (pieces + most - 1) / most)};
}

Transfer::Transfer(CopyStreams* streams, StagedArray in, StagedArray out, Batches batches)
    : streams_(streams),
      gpu_(streams->gpu_.get()),
      driver_(gpu_->driver_),
      in_(std::move(in)),
      out_(std::move(out)),
      split_(batches),
      batches_(batches.count()),
      queued_(batches_),
      missing_(batches_, batches.each),
      left_(new std::atomic<bool>[batches_]) {
  if (batches_ > 0) missing_.back() = split_.pieces - (batches_ - 1) * split_.each;
  for (uint64_t batch = 0; batch < batches_; ++batch) left_[batch].store(false, std::memory_order_relaxed);
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
    if (ordered && registered && gpu_->streams_wait_ && arrived_.address != 0) {
      departed_ = Words::process().take(driver_);
    }
  } catch (...) {
    give_staging_back();
    throw;
  }
}

bool Transfer::take_room_down() {
  const int64_t commands = commands_of(in_, batches_, 1) + static_cast<int64_t>(ready_.size());
  if (!streams_->room_down_.take(commands)) return false;
  room_down_ = commands;
  return true;
}

void Transfer::queue_down() {
  const StreamHandle down = streams_->down_;
  const bool by_words = gpu_->writes_words_ && arrived_.address != 0;
  for (; !ready_.empty(); ready_.pop_back()) {
    driver_.wait(down, ready_.back());
    gpu_->give_back(ready_.back());
  }
  for (uint64_t batch = 0; batch < batches_; ++batch) {
    if (in_.host != nullptr) {
      for (const Range& range : in_.batches[batch]) {
        driver_.copy_down(in_.host + range.offset, in_.device + range.offset, range.bytes, down);
      }
    }
    if (by_words) {
      driver_.write_word(down, arrived_.address, arrived_.base + static_cast<uint32_t>(batch) + 1);
    } else {
      arrivals_.push_back(gpu_->take_event());
      driver_.record(arrivals_.back(), down);
    }
  }
  driver_.record(end_down_, down);
  downs_recorded_ = true;
}

// Everything that must happen before a wait is over was queued before it: all copies down. A batch has left only
// after it has arrived; but if the operation is abandoned, nothing may be written before the producers have ended
// either. What cannot be queued here, for want of room or because the driver refuses, the GPU's thread queues later.
void Transfer::queue_up_behind_words() {
  if (departed_.address == 0 || gpu_->deferred_.load(std::memory_order_relaxed) != 0) return;
  const Lock lock(streams_->queueing_);
  if (streams_->unqueued_.load(std::memory_order_relaxed) > 1) return;  // not this one alone
  const int64_t commands = commands_of(out_, batches_, 2);
  if (!streams_->room_up_.take(commands)) return;
  room_up_ = commands;
  const StreamHandle up = streams_->up_;
  try {
    const Driver::Current current(driver_, gpu_->context_);
    for (uint64_t batch = 0; batch < batches_; ++batch) {
      const auto number = static_cast<uint32_t>(batch) + 1;
      driver_.wait_for_word(up, arrived_.address, arrived_.base + number);
      driver_.wait_for_word(up, departed_.address, departed_.base + number);
      copy_up(batch);
      behind_words_ = returned_ = batch + 1;
    }
    driver_.record(end_up_, up);
    all_queued_up();
    streams_take_up_.store(true, std::memory_order_relaxed);
  } catch (const DriverError& error) {
    if (error.fatal()) fail(error);
  }
}

void Transfer::all_queued_up() {
  ending_ = true;
  streams_->unqueued_.fetch_sub(1, std::memory_order_relaxed);
}

void Transfer::copy_up(uint64_t batch) {
  if (out_.host == nullptr) return;
  for (const Range& range : out_.batches[batch]) {
    driver_.copy_up(out_.device + range.offset, out_.host + range.offset, range.bytes, streams_->up_);
  }
}

bool Transfer::wait_on(StreamHandle stream) {
  if (!can_wait_on()) return false;
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
  const uint64_t batch = split_.of_piece(piece);
  if (failed_.load(std::memory_order_acquire)) return true;
  if (!arrived_.reached(static_cast<uint32_t>(batch) + 1)) return false;
  if (noted_ > batch) return true;
  for (; noted_ <= batch; ++noted_) {
    driver_.note_acquire_at_least(arrived_.value, arrived_.base + static_cast<uint32_t>(noted_) + 1);
    for (const StagedArray* array : {&in_, &out_}) {
      if (array->host == nullptr) continue;
      for (const Range& range : array->batches[noted_]) {
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
  const uint64_t batch = split_.of_piece(piece);
  driver_.note_acquire(&noted_);
  driver_.note_release(&left_[batch]);
  if (--missing_[batch] > 0) return;
  left_[batch].store(true, std::memory_order_release);
  while (gapless_ < batches_ && left_[gapless_].load(std::memory_order_relaxed)) ++gapless_;
  if (departed_.value != nullptr) release_streams(gapless_);
  if (gapless_ == batches_ || !can_wait_on()) gpu_->kick();
}

void Transfer::release_streams(uint64_t batches) {
  driver_.note_release(departed_.value);
  departed_.value->store(departed_.base + static_cast<uint32_t>(batches), std::memory_order_release);
}

void Transfer::abandon() {
  abandoned_.store(true, std::memory_order_release);
  if (departed_.value != nullptr) release_streams(batches_);
  gpu_->kick();
}

void Transfer::follow(bool submitted) { gpu_->follow(shared_from_this(), submitted); }

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
  if (lost()) return false;
  try {
    // Before the batches that have left are looked at: what leaves before it is abandoned is seen then, and nothing
    // leaves afterwards. So no copy up comes behind the end.
    const bool abandoned = abandoned_.load(std::memory_order_acquire);
    if (deferred_ && !queue_deferred(abandoned)) {
      *waits = true;
      return false;
    }
    bool moved = ask_arrivals(waits);
    moved |= queue_up(waits);
    return ask_end(abandoned, waits) || moved;
  } catch (const DriverError& error) {
    fail(error);
    return true;
  }
}

// Returns whether the copies down are queued, or will never be.
bool Transfer::queue_deferred(bool abandoned) {
  if (abandoned) {
    for (; !ready_.empty(); ready_.pop_back()) gpu_->give_back(ready_.back());
    downs_recorded_ = downs_ended_ = true;
  } else {
    if (streams_->held_up_ || !take_room_down()) {
      streams_->held_up_ = true;  // none overtakes it
      return false;
    }
    queue_down();
  }
  set_deferred(false);
  return true;
}

void Transfer::set_deferred(bool deferred) {
  if (deferred_ == deferred) return;
  deferred_ = deferred;
  streams_->deferred_.fetch_add(deferred ? 1 : -1, std::memory_order_relaxed);
  gpu_->deferred_.fetch_add(deferred ? 1 : -1, std::memory_order_relaxed);
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
  if (!downs_ended_) return asked_ != before;
  streams_->room_down_.give_back(std::exchange(room_down_, 0));
  return true;
}

// Those that no stream queues: see queue_up_behind_words.
bool Transfer::queue_up(bool* waits) {
  if (ending_) return false;
  const uint64_t before = returned_;
  for (uint64_t batch = behind_words_; batch < batches_; ++batch) {
    if (queued_[batch] || !left_[batch].load(std::memory_order_acquire)) continue;
    if (room_up_ == 0) {
      const int64_t commands = commands_of(out_, batches_, 0);
      if (!streams_->room_up_.take(commands)) {
        *waits = true;
        break;
      }
      room_up_ = commands;
    }
    driver_.note_acquire(&left_[batch]);
    copy_up(batch);
    queued_[batch] = true;
    ++returned_;
  }
  return returned_ != before;
}

bool Transfer::ask_end(bool abandoned, bool* waits) {
  if (!ending_) {
    if (returned_ < batches_ && !abandoned) return false;
    driver_.record(end_up_, streams_->up_);
    all_queued_up();
  }
  // Copies down of an operation that failed may still be under way.
  if (!downs_ended_ || !driver_.ended(end_up_)) {
    // While other ranks are awaited, nothing of the GPU's can have ended.
    *waits |= !can_wait_on() || departed_.reached(static_cast<uint32_t>(batches_));
    return false;
  }
  // After a failure other ranks may still write to the staging, as to any array of the operation: it is not used
  // again.
  if (abandoned && !cancelled_.load(std::memory_order_relaxed)) in_.host = out_.host = nullptr;
  streams_->room_up_.give_back(std::exchange(room_up_, 0));
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
  for (EventHandle event : ready_) gpu_->give_back(event);  // nothing was queued behind it
  for (const Words::Word& word : {arrived_, departed_}) {
    if (word.value != nullptr) Words::process().give_back(word, static_cast<uint32_t>(batches_));
  }
  Slabs& slabs = Slabs::process();
  if (in_.host != nullptr) slabs.free(driver_, in_.host);
  if (out_.host != nullptr && out_.host != in_.host) slabs.free(driver_, out_.host);
}

// What the GPU does with the array and with the staging nobody knows from now on: neither is used again.
void Transfer::fail(const DriverError& error) {
  set_deferred(false);
  error_ = gpu_->failure(error);
  failed_.store(true, std::memory_order_release);
  end_.complete(*error_);
}

}  // namespace ddl
