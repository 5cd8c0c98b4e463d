// What one operation is, as the ranks must agree on it: it travels in every message header and stands on every board,
// and where two ranks differ both sides are shown.
#pragma once

#include <cstdint>
#include <string>

#include "reduce/dtype.h"

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

const char* name(Collective collective);

struct Descriptor {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  uint8_t sizes_for = 0;  // not 0: the exchange of sizes before that collective, whose sizes may differ by rank
  int32_t root = 0;       // also the other rank of send and recv
  uint64_t count = 0;     // elements; 0 where ranks may rightly differ
  uint64_t sequence = 0;  // its number among the collectives of the communicator
  uint64_t history = 0;  // hash of all collectives so far, this one included: ranks that agree in it agree in all the
                         // rest; a rank that only sends compares nothing, so that its call did not match may come
                         // out in a later one

  // Collective, type, operation and root in one word: with count and sequence, all that ranks must agree on.
  uint64_t signature() const;
  // "allreduce(1024 x float32, average)": the same text on every rank that means the same.
  std::string text() const;
  bool operator==(const Descriptor& other) const { return same_call(other) && history == other.history; }
  bool same_call(const Descriptor& other) const {
    return signature() == other.signature() && count == other.count && sequence == other.sequence;
  }
};

Descriptor descriptor_from(uint64_t signature, uint64_t count, uint64_t sequence, uint64_t history);

// So many upper bits of a history are 0: a post has other use for them (engine/board.h).
constexpr int kHistoryUnused = 4;

// The history after `descriptor`, given the one before.
uint64_t extend_history(uint64_t history, const Descriptor& descriptor);

}  // namespace ddl
