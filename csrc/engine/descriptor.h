// What the ranks must agree on about an operation. It is in every message header and on every board. Where two ranks
// differ, the error shows both.
#pragma once

#include <cstdint>
#include <string>

#include "engine/collectives.h"
#include "reduce/dtype.h"
#include "reduce/reduce_op.h"

namespace ddl {

constexpr int kPairsShift = 15;    // in a signature: the upper bit of the type's byte
constexpr int kWidenedShift = 23;  // the upper bit of the operator's byte

struct Descriptor {
  Collective collective = Collective::kBarrier;
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  bool pairs = false;    // of complex numbers: each is two of `dtype`
  bool widened = false;  // the caller's numbers are of `dtype`; in the buffers they are int64 (engine/wide_average.h)
  uint8_t sizes_for = 0;  // not 0: this is the exchange of sizes before that collective
  int32_t root = 0;       // of send and recv: the other rank
  uint64_t count = 0;     // of numbers; 0 where ranks may differ
  uint64_t sequence = 0;  // its number among the collectives of the communicator
  uint64_t history = 0;  // hash of all collectives so far, with this one. A rank that only sends compares nothing, so
                         // a call that did not match may be found in a later one

  // The type of the numbers in the operation's buffers.
  DType element() const { return widened ? DType::kInt64 : dtype; }
  // Collective, type, operation and root in one word: with count and sequence, all that ranks must agree on.
  uint64_t signature() const {
    return static_cast<uint64_t>(collective) | static_cast<uint64_t>(dtype) << 8 |
           static_cast<uint64_t>(pairs) << kPairsShift | static_cast<uint64_t>(op) << 16 |
           static_cast<uint64_t>(widened) << kWidenedShift | static_cast<uint64_t>(sizes_for) << 24 |
           static_cast<uint64_t>(static_cast<uint32_t>(root)) << 32;
  }
  // "1024 x float32".
  std::string numbers() const;
  // "allreduce(1024 x float32, average)": the same text on every rank that means the same. `self`: a rank that names
  // itself as the source of a receive, and means any.
  std::string text(int self = -1) const;
  bool operator==(const Descriptor& other) const { return same_call(other) && history == other.history; }
  bool same_call(const Descriptor& other) const {
    return signature() == other.signature() && count == other.count && sequence == other.sequence;
  }
};

Descriptor descriptor_from(uint64_t signature, uint64_t count, uint64_t sequence, uint64_t history);

// So many upper bits of a history are 0: a post uses them for something else (engine/board.h).
constexpr int kHistoryUnused = 6;

// The history after `descriptor`, given the one before.
uint64_t extend_history(uint64_t history, const Descriptor& descriptor);

}  // namespace ddl
