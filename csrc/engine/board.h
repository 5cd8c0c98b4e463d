// Where the ranks of one host meet. Each rank has a board in its arena, which the others have mapped.
//
// A stream has two posts: turn n uses post n % 2, so that a rank may be one turn ahead of a slow reader. All that a
// small operation needs is in the first cache line of a post. Its owner writes the other words, then releases `flag`.
// Readers acquire `flag`, and the line that brings it brings the data. A flag holds turn and phase, and only grows.
// The second line is read only where calls do not match. Before the owner writes the words again it sets phase 0 of
// the new turn, so that a reader of the turn before sees that they change (as with a seqlock). Why this is right:
// docs/memory_ordering.md.
#pragma once

#include <atomic>
#include <cstdint>

#include "engine/descriptor.h"
#include "engine/plan.h"
#include "memory/kernel_read.h"

namespace ddl {

constexpr uint64_t kDonePhase = 255;

inline uint64_t flag_of(uint64_t turn, uint64_t phase) { return turn << 8 | phase; }

// A word of a seqlock: its store stays behind the flag's store before it, its load before the flag's load behind it.
class OrderedWord {
 public:
  operator uint64_t() const { return word_.load(std::memory_order_acquire); }
  OrderedWord& operator=(uint64_t value) {
    word_.store(value, std::memory_order_release);
    return *this;
  }

 private:
  std::atomic<uint64_t> word_;
};

constexpr uint64_t kNowhere = ~uint64_t{0};
constexpr uint64_t kPrivate = uint64_t{1} << 63;        // of a word: an address in the owner's private memory
constexpr uint64_t kInlined = uint64_t{1} << kBuffers;  // in Post::packed
// In Post::packed, of a private input: staging has all of it, so the others take all from there. And whether the
// owner wants to know when they have it (engine/handover.h).
constexpr uint64_t kWhole = uint64_t{1} << (kBuffers + 1), kTimed = uint64_t{1} << (kBuffers + 2);
constexpr size_t kPrivateOutput = kBuffers;  // of Post::words
constexpr int kHistoryShift = kBuffers + 3;
static_assert(kHistoryShift == kHistoryUnused);

struct alignas(128) Post {
  static constexpr size_t kInlineBytes = 48;

  std::atomic<uint64_t> flag;
  // Bit b: buffer b is staged, and its blocks lie packed for this piece. kInlined: the scratch is in this post. Then
  // kWhole and kTimed. Above them: the history (see Descriptor), a hash of all calls so far.
  OrderedWord packed;
  // Where the owner's buffers are: offsets in its arena, or kPrivate and an address, or kNowhere. In plans in which
  // it is given a block (Plan::given), also where its private output is, if it may be written there. Or the scratch
  // itself.
  OrderedWord words[kInlineBytes / sizeof(uint64_t)];
  OrderedWord signature, count, sequence;  // which operation: see Descriptor
  // When this rank began the operation (0: it does not time it), and when it had ended a timed piece.
  OrderedWord begun, ended;

  char* inlined() { return reinterpret_cast<char*>(words); }
};
static_assert(sizeof(Post) == 128);

// With lanes, small operations do not wait behind large ones, and send/recv does not wait behind collectives.
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

// What the owner can do with another rank's private memory (see memory/kernel_read.h, kernel_write.h).
constexpr uint64_t kCanRead = 1, kCanWrite = 2;

// Followed in memory by kStreams ring offsets for each rank of the communicator (see transport/shm), and by a word
// for each: kCanRead, kCanWrite.
struct alignas(128) Board {
  Post posts[kStreams][2];
  SleepWord lanes[kLanes];
  // Odd while a lane of the owner is in a call that may write to private memory of others, or stores to their arenas
  // itself. Each begin and end adds 1.
  std::atomic<uint32_t> writing[kLanes], storing[kLanes];
  // Others read these often, so they have a line of their own.
  alignas(64) std::atomic<uint32_t> taken_back;  // 1: operations of the owner have failed, so its arrays may be gone
  // A number of this board's own while its owner may touch memory of others. When it has shut the communicator down,
  // 0. Then, when the board is freed, whatever else comes to lie there.
  std::atomic<uint64_t> present;
  ProcessMark mark;  // of the owner; never changes
  uint64_t gate;     // of the owner, an address; never changes

  std::atomic<uint64_t>* ring_offset(int rank, int stream) {
    return reinterpret_cast<std::atomic<uint64_t>*>(this + 1) + rank * kStreams + stream;
  }
  // `size`: of the communicator.
  std::atomic<uint64_t>* can(int rank, int size) { return ring_offset(size, 0) + rank; }
  static size_t bytes(int size) {
    return sizeof(Board) + static_cast<size_t>(size) * (kStreams + 1) * sizeof(std::atomic<uint64_t>);
  }
};

}  // namespace ddl
