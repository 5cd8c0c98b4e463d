// Keeps the record of one communicator (engine/record.h) in the arena, and its place in the process's root.
//
// `number` belongs to the thread that submits, `traffic` and `lane` to the drivers of the lanes, the rest to any
// thread. The record of a failed communicator stays when the communicator goes: people look for the cause after the
// job has ended.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/mutex.h"
#include "engine/record.h"

namespace ddl {

struct Operation;
struct Descriptor;

class Recorder {
 public:
  // `collectives` and `messages`: how many operations of each kind it remembers; powers of 2.
  Recorder(int rank, int size, uint32_t collectives, uint32_t messages);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Which communicator of the job it is, and the numbers of its ranks there.
  void introduce(uint64_t communicator, const std::vector<uint32_t>& ranks);
  // Returns by which number an entry names that plan.
  uint8_t name_plan(const std::string& name);
  void note_failure(const std::string& text);
  void note_close();

  // Gives the operation the next number of its ring, and so an entry there.
  void number(Operation* operation);
  // Fills in the entry: by the thread that submits, or by the lane's driver.
  static void write(Operation* operation);
  uint64_t submitted() const { return record_->submitted.load(std::memory_order_relaxed); }
  // The collective number `sequence` as far as its text needs it; false: not submitted yet, or too long ago.
  bool recall(uint64_t sequence, Descriptor* descriptor, std::string* label) const;

  Activity* lane(LaneId id) { return &record_->lanes[static_cast<size_t>(id)]; }
  const Activity& lane(LaneId id) const { return record_->lanes[static_cast<size_t>(id)]; }
  Traffic* traffic(LaneId id, int peer) {
    return traffic_ + static_cast<size_t>(id) * record_->size + static_cast<size_t>(peer);
  }
  // Over all lanes and ranks.
  std::pair<uint64_t, uint64_t> sent() const;

 private:
  Record* record_;
  uint32_t* ranks_;
  Traffic* traffic_;
  Entry *collectives_, *messages_;
  uint64_t collectives_mask_, messages_mask_;
  Mutex naming_;
};

// Says who the process is. Does nothing in a forked child.
void record_identity(const std::string& json);

// Notes that a training step of this process has ended now. Any thread may call it, also while others do; it takes no
// lock and makes no system call but for the clock. The ring may be a step behind the counter, or out of order, when
// it is read: so readers sort its times. Does nothing in a forked child.
void note_step();

// Adds to what only the calling thread writes: no locked instruction.
template <typename T>
void count(std::atomic<T>* counter, T more) {
  counter->store(counter->load(std::memory_order_relaxed) + more, std::memory_order_relaxed);
}

}  // namespace ddl
