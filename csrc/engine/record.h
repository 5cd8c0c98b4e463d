// The layout of what a process records, in memory that others can read: docs/record.md explains it, and
// ddl/records/layout.py reads it. Whoever changes it raises kRecordVersion.
//
// It lies in the arena, a memfd. So the other ranks of the host have it mapped, and whoever may open /proc/PID/fd can
// read it while the process computes, hangs or is stopped; with the descriptor kept open, even after its end. Fields
// that change are relaxed atomics, which order nothing. Only an entry's number does: it is 0 while the entry is
// written.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/clock.h"
#include "engine/board.h"

namespace ddl {

constexpr uint32_t kRecordVersion = 4;
constexpr size_t kRecords = 256;   // communicators that the root can name
constexpr size_t kPlanNames = 63;  // of a communicator; an operation by a further plan has no name
constexpr size_t kPlanNameBytes = 32;
constexpr size_t kLabelBytes = 64;
constexpr size_t kTextBytes = 1024;
constexpr size_t kStepEnds = 64;  // training steps whose time is remembered

// How far an operation is.
enum class Progress : uint8_t { kSubmitted = 1, kBegun, kEnded, kFailed };

// Its pieces, the length of its label, its lane, its plan (1 + the place in Record::plan_names; 0: none), and how far
// it is, from the upper half down to the lowest byte.
constexpr uint64_t pack(uint32_t pieces, size_t label_bytes, LaneId lane, uint8_t plan, Progress progress) {
  return uint64_t{pieces} << 32 | uint64_t{label_bytes} << 24 | static_cast<uint64_t>(lane) << 16 |
         uint64_t{plan} << 8 | static_cast<uint64_t>(progress);
}
constexpr uint8_t label_bytes_of(uint64_t packed) { return static_cast<uint8_t>(packed >> 24); }
constexpr uint64_t with_progress(uint64_t packed, Progress progress) {
  return (packed & ~uint64_t{0xff}) | static_cast<uint64_t>(progress);
}

// One operation. Times are nanoseconds of CLOCK_MONOTONIC; 0: it is not so far, or nobody has read the clock. That is
// not done for an operation that moves little and whose peers were there already: it took about 2 us at most.
struct alignas(64) Entry {
  std::atomic<uint64_t> number;  // from 1 up, in its ring; of a collective: its sequence. 0: it is being written
  std::atomic<uint64_t> signature;
  std::atomic<uint64_t> count;
  std::atomic<Nanoseconds> submitted, begun, ended;
  std::atomic<uint32_t> pieces_ended;
  std::atomic<uint32_t> awaited;     // 1 + the rank for which a thread has last gone to sleep over it; 0: none
  std::atomic<uint64_t> packed;      // see `pack`; progress is its lowest byte
  void advance(Progress progress) {  // by its lane's driver
    packed.store(with_progress(packed.load(std::memory_order_relaxed), progress), std::memory_order_relaxed);
  }
  char label[kLabelBytes];  // its last bytes, if it is longer. In a cache line of its own: most have none
};
static_assert(sizeof(Entry) == 128);

// What a lane has done so far. Its driver writes, any thread reads, so the numbers may be of different moments.
struct alignas(64) Activity {
  std::atomic<uint64_t> operations;          // ended
  std::atomic<Nanoseconds> waited;           // while operations were under way and nothing moved; waits that are over
  std::atomic<Nanoseconds> under_way;        // while operations were; of small ones, from the first wait on
  std::atomic<Nanoseconds> under_way_since;  // the part of it that has not ended; 0: none
  std::atomic<Nanoseconds> waiting_since;    // a wait that is not over, in which the driver has slept; 0: none
};

// What a lane has sent to a rank: messages with data, and their bytes.
struct Traffic {
  std::atomic<uint64_t> messages, bytes;
};

// A text that is written seldom. `bytes` is 0 while it is being written.
template <size_t kBytes>
struct RecordedText {
  std::atomic<uint32_t> bytes;
  char text[kBytes];
};

// One communicator. Behind it come: the ranks (uint32_t of each, by its number in the job), traffic (of lane and
// rank), entries of collectives, entries of sends and receives. The offsets count from the arena's start.
struct alignas(64) Record {
  std::atomic<uint64_t> submitted;  // collectives; the last one's number
  std::atomic<uint64_t> submitted_messages;
  Activity lanes[kLanes];
  uint32_t rank, size;
  std::atomic<uint64_t> communicator;  // its number in the job
  std::atomic<Nanoseconds> closed;     // when it was shut down; 0: it was not
  uint64_t ranks_offset, traffic_offset;
  uint64_t collectives_offset, messages_offset;
  uint32_t collectives, messages;  // entries of each ring
  std::atomic<uint32_t> plans;
  RecordedText<512> failure;
  char plan_names[kPlanNames][kPlanNameBytes];
};

// At the arena's start.
struct alignas(64) RecordRoot {
  char magic[8];  // "ddl-rec"
  uint32_t version;
  uint32_t process;
  Nanoseconds monotonic, wall;              // the same moment by CLOCK_MONOTONIC and by CLOCK_REALTIME
  std::atomic<uint32_t> unlisted;           // communicators for which there was no place
  RecordedText<kTextBytes> identity;        // JSON, by Python: which rank of which job this is
  std::atomic<uint64_t> records[kRecords];  // offsets of Records; 0: none
  // Training steps that have ended, and when: a ring, in which step n, from 0 up, is at n % kStepEnds. See note_step.
  std::atomic<uint64_t> steps;
  std::atomic<Nanoseconds> step_ends[kStepEnds];
};
constexpr size_t kRootBytes = 4096;
static_assert(sizeof(RecordRoot) <= kRootBytes);

}  // namespace ddl
