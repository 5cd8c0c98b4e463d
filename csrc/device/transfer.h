// One operation's way between a GPU and the arena: its pieces come down, and their results go up.
//
// Pieces are copied in *batches*, 64 at most, so that what an operation queues is bounded. The submitting thread
// queues the copies down, and behind each batch a write of a word that says how many are there. From then on the
// GPU's thread alone calls the driver: it queues the copies up of batches that have left, and asks whether the GPU is
// done. The lane calls `arrived` and `left`, which only load and store words. When the last copy up has
// ended, the staging is free again, and `ended` is true: only then may the arrays be given back to their owner.
//
// If results are to be waited for on the GPU (Driver::waits_on_gpu), the submitting thread queues the copies up as
// well, each behind a wait for a word, by which the lane says how many batches have left. Then a stream of the caller
// can wait for the results (`wait_on`) while the host goes on. All of this is queued when the operation is submitted:
// even if the driver holds up the submitting thread, the operation goes on, or its deadline ends it. Whatever ends
// the operation, the lane writes the last number, so that no stream waits for ever.
//
// A stream takes some 1,000 commands behind a wait, and then blocks whoever calls. So each stream has a Room. If it
// has no room for an operation's copies down, they are *deferred*: the GPU's thread queues them later. Until it has,
// no stream is made to wait for a word: a driver call (cuMemFree) may wait for that word and block the GPU's thread,
// while the word is set only after the copies down.
//
// If the driver cannot write words, an event follows each batch instead, and the GPU's thread writes the word.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/error.h"
#include "device/driver.h"
#include "device/words.h"
#include "engine/stage.h"
#include "engine/work.h"

namespace ddl {

class CopyStreams;
class Gpu;

// Which pieces of an operation are copied together.
struct Batches {
  uint64_t pieces = 1;
  uint64_t each = 1;  // pieces of a batch; of the last one, fewer

  // `ranges`: of one piece, at most.
  static Batches of(uint64_t pieces, uint64_t ranges);
  uint64_t count() const { return (pieces + each - 1) / each; }
  uint64_t of_piece(uint64_t piece) const { return piece / each; }
};

// An array of an operation: where it is, where its copy is, and which parts each batch reads or writes.
struct StagedArray {
  DevicePointer device = 0;
  uint64_t bytes = 0;    // 0: the operation has no such array on the GPU
  char* host = nullptr;  // the copy; set by Gpu::prepare
  std::vector<Ranges> batches;
};

class Transfer final : public Stage, public std::enable_shared_from_this<Transfer> {
 public:
  // For so long after something has moved, a thread that waits for a transfer only yields, and does not sleep.
  static constexpr Nanoseconds kAwake = 300 * kMicrosecond;

  // `in`: what the operation reads. `out`: what it writes, perhaps to the same memory.
  // The streams, and with them the GPU, live at least until it has ended.
  Transfer(CopyStreams* streams, StagedArray in, StagedArray out, Batches batches);
  ~Transfer() override;
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  bool arrived(uint64_t piece) override;
  void check() override;
  void left(uint64_t piece) override;
  void abandon() override;
  // From now on the GPU's thread looks after it.
  void follow(bool submitted) override;
  void cancel() override;
  bool ended() const override;
  void sleep(Nanoseconds timeout) override { end_.sleep(timeout); }
  void finish() override;
  bool can_wait_on() const override { return streams_take_up_.load(std::memory_order_relaxed); }
  bool wait_on(StreamHandle stream) override;

  Gpu& gpu() const { return *gpu_; }
  // Whether the driver has refused a call in the middle: then nobody knows when the GPU uses the arrays last.
  bool lost() const { return failed_.load(std::memory_order_acquire); }
  // The copies of the arrays; null: there is none.
  char* in_host() const { return in_.host; }
  char* out_host() const { return out_.host; }

 private:
  friend class Gpu;
  // By the submitting thread.
  void take_staging(bool ordered);
  bool take_room_down();
  void queue_up_behind_words();
  // By the submitting thread, or by the GPU's if it is deferred.
  void queue_down();
  void set_deferred(bool deferred);
  void copy_up(uint64_t batch);
  void all_queued_up();
  // By the lane, or when nobody is left who could.
  void release_streams(uint64_t batches);
  // By the GPU's thread. `progress` returns whether anything moved; `waits`: whether it waits for the GPU.
  bool progress(bool* waits);
  bool queue_deferred(bool abandoned);
  bool ask_arrivals(bool* waits);
  bool queue_up(bool* waits);
  bool ask_end(bool abandoned, bool* waits);
  void fail(const DriverError& error);
  void give_staging_back();

  CopyStreams* const streams_;
  Gpu* const gpu_;
  const Driver& driver_;
  StagedArray in_, out_;
  const Batches split_;
  const uint64_t batches_;
  Words::Word arrived_;                // how many batches are down
  std::vector<EventHandle> ready_;     // what the copies down wait for, until they are queued
  std::vector<EventHandle> arrivals_;  // where no stream can write words: a batch is down
  EventHandle end_down_ = nullptr;     // all that was queued down has ended
  EventHandle end_up_ = nullptr;
  bool deferred_ = false;
  bool downs_recorded_ = false, downs_ended_ = false;
  int64_t room_down_ = 0, room_up_ = 0;  // what it has of the streams' rooms
  Words::Word departed_;                 // how many batches have left, without a gap; no value: no stream may wait
  uint64_t gapless_ = 0;                 // the same, for the lane
  uint64_t asked_ = 0;                   // of `arrivals_`, those that have ended
  uint64_t behind_words_ = 0;            // the first batches, whose copies up wait for `departed_`
  uint64_t returned_ = 0;                // batches whose copies up are queued
  bool ending_ = false;                  // no copy up will be queued any more, and `end_up_` is recorded
  std::atomic<bool> streams_take_up_{false};  // all copies up wait for `departed_`
  Mutex ordering_;                            // `end_up_` is given back under it
  std::vector<bool> queued_;

  uint64_t noted_ = 0;                         // batches that the lane has seen
  std::vector<uint64_t> missing_;              // pieces of each batch that have not left; the lane's
  std::unique_ptr<std::atomic<bool>[]> left_;  // by batch; released by the lane
  std::atomic<bool> abandoned_{false}, cancelled_{false};
  std::atomic<bool> failed_{false};  // released when error_ is there
  std::optional<DriverError> error_;
  Work end_;
};

}  // namespace ddl
