// What the core knows of each collective, and of messages, said once: whoever wants to know something asks `traits`.
// The planner's table is ddl/plan/collectives.py, and a test compares the two.
#pragma once

#include <cstdint>

namespace ddl {

// The numbers are those of ddl.plan.ir.Collective, and part of the wire format.
enum class Collective : uint8_t {
  kAllreduce = 1,
  kReducescatter,
  kAllgather,
  kBroadcast,
  kAlltoall,
  kReduce,
  kGather,
  kScatter,
  kBarrier,
  kSend,
  kRecv,
};

// Which ranks pass a buffer.
enum class Holders : uint8_t { kNobody, kRoot, kAll };

// What is in it.
enum class Content : uint8_t {
  kNothing,
  kWhole,   // as much as in the other buffer
  kBlock,   // the block of one rank
  kBlocks,  // a block for each rank
};

// Which ranks one must wait for, as far as that is certain: those that have nothing to send may not be needed.
enum class Needs : uint8_t { kUnknown, kAll, kAllIfBlocksAreEqual, kRoot };

struct CollectiveBuffer {
  Holders holders;
  Content content;
};

struct CollectiveTraits {
  const char* name;
  CollectiveBuffer input, output;
  bool reduces;  // it combines elements
  bool rooted;
  Needs needs;

  // Whether a buffer has a block for each rank. Its blocks may have other lengths than those of the other buffer.
  bool in_blocks() const { return input.content >= Content::kBlock; }
};

// Of a number that is no collective (it may come from a peer), those of "unknown operation".
const CollectiveTraits& traits(Collective collective);
inline const char* name(Collective collective) { return traits(collective).name; }

// Whether there is a collective of that number.
bool is_collective(long number);
// Send and receive are between two ranks, and are not numbered.
inline bool is_message(Collective collective) { return collective >= Collective::kSend; }

}  // namespace ddl
