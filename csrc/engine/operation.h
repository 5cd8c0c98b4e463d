// One submitted operation: what to do with which memory, and how far it is.
//
// The submitting thread fills it in, then its lane owns it until its work is done. A large operation runs as several
// *pieces*: each piece runs the whole plan on a part of the buffer. Some pieces are in flight at once, so that all
// dimensions work at the same time. Operations are used again (engine/operation_pool.h): after the first ones,
// nothing is allocated.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "engine/board.h"
#include "engine/descriptor.h"
#include "engine/handover.h"
#include "engine/plan.h"
#include "engine/record.h"
#include "engine/stage.h"
#include "engine/work.h"

namespace ddl {

struct Operation {
  Operation() = default;
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // --- what is to be done; by the submitter ---
  Descriptor descriptor;  // what the user asked for; submit() numbers it
  Descriptor wire;        // what the other side must have asked for (differs for send and receive)
  std::string label;      // the user's name for it, e.g. "bucket.4"; may be empty
  const char* input = nullptr;
  char* output = nullptr;
  char* residual = nullptr;  // as long as the output; may be null: see reduce/wire_codec.h
  // Lengths in elements: of the whole buffer if the plan splits it, else of each part (one entry: all the same).
  uint64_t count = 0;
  std::vector<uint64_t> part_lengths;
  uint64_t bytes = 0;    // they choose the plan; the same on all ranks
  void* kept = nullptr;  // what the submitter keeps alive until the end; the engine does not touch it
  bool open = false;     // whether it may still get something to keep; see OperationPool

  // --- how; by Communicator ---
  const Plan* plan = nullptr;
  uint32_t edition = 0;   // of the plans when it was prepared: see Communicator::replace
  uint8_t plan_name = 0;  // see Entry::plan
  LaneId lane = LaneId::kSmall;
  uint64_t divisor = 1;
  uint64_t piece_elements = 0;  // of the buffer if split, else of each part
  uint64_t pieces = 1;
  uint32_t in_flight = 1;  // pieces, at most
  Nanoseconds timeout = 0;

  // --- how far; by the driver of the lane ---
  uint64_t issued = 0;
  uint64_t finished = 0;
  std::atomic<int> source{-1};    // of a receive: the rank whose message it takes, once that is known
  Nanoseconds started = 0;        // when a thread first had to wait for it
  Nanoseconds next_question = 0;  // when to ask the others, if it is still not done
  bool asked_finally = false;
  std::optional<HandoverChoice::Ticket> handover;
  Operation* next = nullptr;        // in the lane's queue
  std::shared_ptr<Operation> self;  // keeps it alive while the lane has it, unless a blocking caller does

  // Where it is recorded, as number `recorded` of its ring.
  Entry* entry = nullptr;
  uint64_t recorded = 0;
  bool entry_written = false;

  // By the submitter, for arrays that lie elsewhere: input and output are copies of them then. (Here because the
  // lines above are in the cache.)
  std::shared_ptr<Stage> stage;

  Work work;

  // Its entry, or null if the ring has wrapped around since it was submitted. For the driver.
  Entry* own_entry() const { return entry->number.load(std::memory_order_relaxed) == recorded ? entry : nullptr; }
  uint64_t part_length(uint32_t part) const {
    return part_lengths.size() == 1 ? part_lengths[0] : part_lengths[part];
  }
  // Its timeout counts from when a thread first had to wait for it.
  void begin_clock(Nanoseconds now);
  // Ready to be submitted (again).
  void rewind();
  // `allreduce #417 "bucket.4" (16777216 x float32, sum)`
  std::string text() const;
};

}  // namespace ddl
