// What a lane writes into the record (engine/record.h): how far its operations are, and how long it was busy.
#include "engine/lane.h"

namespace ddl {

// An operation that this thread submitted has no entry before it has to wait, or ends.
void Lane::record(Operation* operation) {
  if (!operation->entry_written) Recorder::write(operation);
}

// The clock is read while operations are under way.
void Lane::note_begin(Nanoseconds now) {
  std::atomic<Nanoseconds>& since = activity_->under_way_since;
  if (since.load(std::memory_order_relaxed) == 0) since.store(now, std::memory_order_relaxed);
  for (const Executor* executor : active_) {
    record(executor->operation());
    Entry* const entry = executor->operation()->own_entry();
    if (entry == nullptr || entry->begun.load(std::memory_order_relaxed) != 0) continue;
    entry->begun.store(now, std::memory_order_relaxed);
    entry->advance(Progress::kBegun);
  }
}

void Lane::note_end(Operation* operation, bool well) {
  count(&activity_->operations, uint64_t{1});
  expectation_.operation_ended();
  std::atomic<Nanoseconds>& since = activity_->under_way_since;
  const Nanoseconds begun = since.load(std::memory_order_relaxed);
  Nanoseconds now = 0;
  if (begun != 0) {
    now = now_ns();
    count(&activity_->under_way, now - begun);
    since.store(has_work() ? now : 0, std::memory_order_relaxed);
  }
  record(operation);
  Entry* const entry = operation->own_entry();
  if (entry == nullptr) return;
  if (now != 0) entry->ended.store(now, std::memory_order_relaxed);
  entry->advance(well ? Progress::kEnded : Progress::kFailed);
}

void Lane::note_awaited(const Executor& executor) {
  Entry* const entry = executor.operation()->own_entry();
  if (entry != nullptr)
    entry->awaited.store(static_cast<uint32_t>(executor.first_awaited() + 1), std::memory_order_relaxed);
}

}  // namespace ddl
