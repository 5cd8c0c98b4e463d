// Where the blocks of one piece lie: in the user's buffers, or in memory of the slot's own where those cannot be
// used.
//
// Blocks lie *spread* in a user's buffer (every block at its place in the whole buffer) or *packed* in the slot's own
// memory (this piece's parts one after the other): scratch, and *staging*, which stands in for a buffer that peers
// must reach but that is not in shared memory. Belongs to one executor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/operation.h"

namespace ddl {

// The blocks of one of the plan's tables, in bytes.
struct BlockLayout {
  std::vector<uint64_t> spread, packed, bytes;
  uint64_t packed_total = 0;
};

struct Span {
  char* data;
  uint64_t bytes;
};

class PieceBuffers {
 public:
  PieceBuffers() = default;
  ~PieceBuffers();
  PieceBuffers(const PieceBuffers&) = delete;
  PieceBuffers& operator=(const PieceBuffers&) = delete;

  // Lays out piece number `piece` of `operation` and copies private input to staging. `turn` chooses the scratch: it
  // is not touched again before the turn after the next.
  void begin(const Operation& operation, uint64_t piece, uint64_t turn);
  // Copies staged output to where the user wants it.
  void end();

  Span mine(BufferId buffer, uint32_t block) const {
    const BlockLayout& layout = layouts_[plan_->mine[static_cast<size_t>(buffer)]];
    const uint64_t offset = packed(buffer) ? layout.packed[block] : layout.spread[block];
    return {base(buffer) + offset, layout.bytes[block]};
  }
  char* base(BufferId buffer) const { return base_[static_cast<size_t>(buffer)]; }
  bool packed(BufferId buffer) const { return packed_[static_cast<size_t>(buffer)]; }
  const BlockLayout& layout(uint32_t table) const { return layouts_[table]; }

 private:
  // Memory in the arena, grown as needed.
  struct Block {
    char* data = nullptr;
    uint64_t bytes = 0;
  };

  void lay_out(const Operation& operation, uint64_t piece);
  void bind(const Operation& operation, uint64_t turn);
  const BlockLayout& layout(BufferId buffer) const { return layouts_[plan_->mine[static_cast<size_t>(buffer)]]; }
  bool must_stage(BufferId buffer) const;
  static char* grow(Block* block, uint64_t bytes);

  const Plan* plan_ = nullptr;
  char* user_output_ = nullptr;
  std::vector<BlockLayout> layouts_;  // one per table of the plan
  std::array<char*, kBuffers> base_{};
  std::array<bool, kBuffers> packed_{};
  Block staged_input_, staged_output_;
  std::array<Block, 2> scratch_;  // for even and odd turns
};

}  // namespace ddl
