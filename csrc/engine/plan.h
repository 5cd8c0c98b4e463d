// The table that the executor runs. ddl/plan/lower.py makes it of a ddl.plan.ir.Plan, with block numbers for chunks.
//
// A *block* is a run of elements in a buffer. A step names the blocks that it reads and writes, one per chunk of its
// message. A block belongs to a *part*, and the operation gives every part a length. Immutable.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "base/error.h"
#include "reduce/wire_codec.h"

namespace ddl {

constexpr int kMaxChannels = 4;
constexpr int kBuffers = 3;

enum class BufferId : uint8_t { kInput, kOutput, kScratch };

// The numbers are those of ddl.plan.ir.Kind.
enum class StepKind : uint8_t {
  kSend = 1,
  kRecv,
  kRecvReduce,
  kReduceFrom,
  kCopyFrom,
  kCopyTo,
  kCopy,
  kNotify,
  kAwait,
};

using Blocks = std::vector<uint32_t>;

// The peer's memory in a step that touches it: the table of its buffer, and the blocks.
struct Remote {
  uint32_t table = 0;
  Blocks blocks;
};

struct Step {
  StepKind kind = StepKind::kNotify;
  BufferId src = BufferId::kOutput;
  BufferId dst = BufferId::kOutput;
  bool final = false;        // makes the final value; a kSend sends it
  bool onto = false;         // a kReduceFrom whose own operand is what dst holds
  bool after_sends = false;  // begins when all that its channel has sent before is released
  // A kCopyTo of a block that each peer may take itself, or the kCopyFrom by which it does, as the first block of
  // several (ddl/plan/pull.py). For each two ranks, one of the two is done.
  bool pull = false;
  uint8_t phase = 0;
  std::vector<int> peers;       // ascending; a kRecv of several takes the first message that one of them sends
  Blocks src_blocks;            // of this rank (of dst if `onto`); empty where the step does not read its memory
  Blocks dst_blocks;            // of this rank; empty where the step does not write its memory
  std::vector<Remote> remotes;  // of the peers' memory: one per peer for the three direct kinds
  // A kReduceFrom whose next step copies exactly its result to others: the two run as one.
  bool fused_with_next = false;

  bool from_any() const { return kind == StepKind::kRecv && peers.size() > 1; }
  // The buffer of this rank that the step reads.
  BufferId own() const { return onto ? dst : src; }
};

struct Plan {
  // One buffer cut evenly into blocks (all-reduce, reduce, broadcast), or blocks of given lengths (the others).
  bool split = true;
  uint32_t parts = 1;                           // how many different lengths there are
  std::vector<std::vector<uint32_t>> tables;    // the part of each block of a buffer
  std::array<uint32_t, kBuffers> own_tables{};  // the tables of this rank's buffers
  std::vector<std::vector<Step>> channels;
  // By buffer and block: whether other ranks read or write it directly.
  std::array<std::vector<bool>, kBuffers> exposed;
  // By buffer: whether all that other ranks do with it is to copy from it, or to copy to it.
  std::array<bool, kBuffers> only_copied{}, only_written{};
  WireCodec wire = WireCodec::kNone;  // how messages of float32 are written

  // Set by finish().
  int rank = 0, size = 1;                    // the rank that it is for
  bool notifies = false;                     // posts where its buffers are (in channel 0)
  bool messages = false;                     // sends or receives
  bool symmetric = false;                    // copies from inputs of peers, which copy from its own
  bool pulled = false;                       // peers may take all of its input (Step::pull)
  bool given = false;                        // a peer copies a block to its output that it may take itself
  std::array<bool, kBuffers> any_exposed{};  // by buffer
  std::vector<bool> takeable;                // of its input: the exposed blocks, and what is pulled

  // Checks every index and finds the fused steps. Throws kInternalError: a plan comes from our own planners.
  void finish(int its_rank, int its_size);
};

}  // namespace ddl
