// Where the ranks of one host meet: each rank's board lies in its arena, and the others have it mapped.
//
// A stream has two posts, used in turn (turn n uses post n % 2), so that a rank may be one turn ahead of a slow
// reader. A post is one cache line: its owner writes the other fields, then releases `flag`; readers acquire `flag`.
// A flag holds turn and phase and only grows; phase kDonePhase says that the owner has ended that turn, after which
// (two turns later) the post and the scratch that went with it may be used again. Before its owner writes the fields
// anew it sets phase 0 of the new turn, so that who looks back at the turn before can tell (as with a seqlock); the
// fields are atomics, relaxed, for that one reader.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/plan.h"

namespace ddl {

constexpr uint64_t kDonePhase = 255;

inline uint64_t flag_of(uint64_t turn, uint64_t phase) { return turn << 8 | phase; }

// An atomic word whose order is kept by the flag beside it.
class RelaxedWord {
 public:
  operator uint64_t() const { return word_.load(std::memory_order_relaxed); }
  RelaxedWord& operator=(uint64_t value) {
    word_.store(value, std::memory_order_relaxed);
    return *this;
  }

 private:
  std::atomic<uint64_t> word_;
};

struct alignas(64) Post {
  std::atomic<uint64_t> flag;
  RelaxedWord signature, count, sequence;  // which operation: see Descriptor
  RelaxedWord input, output, scratch;      // where my buffers are: offsets in my arena, or kNowhere
  RelaxedWord packed;  // bit b: buffer b is staged, its blocks lie packed for this piece; above bit 3: the history
};
static_assert(sizeof(Post) == 64);

constexpr uint64_t kNowhere = ~uint64_t{0};

// Lanes keep small and blocking operations from waiting behind large ones, and send/recv apart from collectives.
enum class LaneId : uint8_t { kSmall, kLarge, kPointToPoint };
constexpr int kLanes = 3;
constexpr int kLargeSlots = 4;               // pieces of large operations in flight
constexpr int kSlots = 1 + kLargeSlots + 1;  // slot 0: small; then large; the last: send/recv
constexpr int kPointToPointSlot = kSlots - 1;
constexpr int kStreams = kSlots * kMaxChannels;

inline int stream_of(int slot, int channel) { return slot * kMaxChannels + channel; }
inline LaneId lane_of_slot(int slot) {
  if (slot == 0) return LaneId::kSmall;
  return slot == kPointToPointSlot ? LaneId::kPointToPoint : LaneId::kLarge;
}

struct alignas(64) SleepWord {
  std::atomic<uint32_t> sleeping;
};

// Followed in memory by kStreams ring offsets for each rank of the communicator (see transport/shm).
struct alignas(128) Board {
  Post posts[kStreams][2];
  SleepWord lanes[kLanes];

  std::atomic<uint64_t>* ring_offset(int rank, int stream) {
    return reinterpret_cast<std::atomic<uint64_t>*>(this + 1) + rank * kStreams + stream;
  }
  static size_t bytes(int size) {
    return sizeof(Board) + static_cast<size_t>(size) * kStreams * sizeof(std::atomic<uint64_t>);
  }
};

}  // namespace ddl
