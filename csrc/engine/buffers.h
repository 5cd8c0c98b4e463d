// Where the blocks of one piece lie: in the user's buffers, or, where those cannot be used, in the slot's memory.
//
// Blocks lie *spread* in a user's buffer: every block at its place in the whole buffer. Or they lie *packed* in the
// slot's memory: the parts of this piece one after the other. The slot's memory is scratch, and *staging*: copies of
// those blocks that peers must reach and that lie in a private buffer. Belongs to one executor.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/neighbourhood.h"
#include "engine/one_way.h"
#include "engine/operation.h"

namespace ddl {

// The blocks of one of the plan's tables, in bytes.
struct BlockLayout {
  std::vector<uint64_t> spread, packed, bytes;
  uint64_t packed_total = 0;
  uint64_t spread_end = 0;  // of the last block
};

// Fills in the layout of one of the plan's tables, for one piece.
void lay_out_table(const Operation& operation, size_t table, uint64_t piece, BlockLayout* layout);
// Which parts of the whole input or output one piece has.
Ranges ranges_of(const Operation& operation, BufferId buffer, uint64_t piece);

struct Span {
  char* data;
  uint64_t bytes;
};

class PieceBuffers {
 public:
  PieceBuffers(OneWayCopies* one_way, HandoverChoice* handovers, const Neighbourhood& neighbourhood)
      : one_way_(one_way), handovers_(handovers), neighbourhood_(neighbourhood) {}
  ~PieceBuffers();
  PieceBuffers(const PieceBuffers&) = delete;
  PieceBuffers& operator=(const PieceBuffers&) = delete;

  // Lays out piece number `piece` of `operation`, and copies what peers read of a private input to staging. `turn`
  // chooses the scratch, which is used again two turns later. Scratch that fits lies in `post`.
  void begin(Operation* operation, uint64_t piece, uint64_t turn, Post* post);
  // Whether staging has all of the private input, so that the others take all that they may (Step::pull): kWhole.
  bool taken_whole() const { return taken_whole_; }
  // Whether the operation is timed to find out how it is best handed over.
  bool timed() const { return timed_; }
  // When the first piece of a timed operation began.
  Nanoseconds begun() const { return begun_; }
  // Copies what peers wrote of a private output to the user's buffer.
  void end();
  // Peers have written nothing to the staging of a private output: it is written where it lies.
  void unstage_output() { staged_[static_cast<size_t>(BufferId::kOutput)] = nullptr; }

  Span span(BufferId buffer, uint32_t block) const {
    const auto b = static_cast<size_t>(buffer);
    const BlockLayout& layout = laid_out_->tables[plan_->own_tables[b]];
    if (staged_[b] != nullptr && plan_->exposed[b][block]) {
      return {staged_[b] + layout.packed[block], layout.bytes[block]};
    }
    return {base_[b] + (buffer == BufferId::kScratch ? layout.packed[block] : layout.spread[block]),
            layout.bytes[block]};
  }
  // The same, for a copy by this rank itself: of an input that was only copied to staging, the user's buffer. There,
  // a copy from an input in place to the output is none.
  Span source(BufferId buffer, uint32_t block) const {
    if (buffer != BufferId::kInput || staged_[0] == staged_[1]) return span(buffer, block);
    return {base_[0] + layout(buffer).spread[block], layout(buffer).bytes[block]};
  }
  // Where a block's bytes begin in the whole buffer, which the plan splits.
  uint64_t place(BufferId buffer, uint32_t block) const { return layout(buffer).spread[block]; }
  // The memory in which peers find the blocks that they touch: spread, or packed if `packed` is true.
  char* exposed_base(BufferId buffer) const {
    const auto b = static_cast<size_t>(buffer);
    return staged_[b] != nullptr ? staged_[b] : base_[b];
  }
  bool packed(BufferId buffer) const {
    return buffer == BufferId::kScratch || staged_[static_cast<size_t>(buffer)] != nullptr;
  }
  bool scratch_inlined() const { return scratch_inlined_; }
  // Whether peers read the buffer where it lies in private memory.
  bool read_privately(BufferId buffer) const { return read_privately_[static_cast<size_t>(buffer)]; }
  // The private output, if a peer may write there what it would write to staging; else null.
  char* private_output() const { return may_be_written_ ? base_[static_cast<size_t>(BufferId::kOutput)] : nullptr; }
  const BlockLayout& layout(uint32_t table) const { return laid_out_->tables[table]; }

 private:
  // Memory in the arena, grown as needed.
  struct Block {
    char* data = nullptr;
    uint64_t bytes = 0;
    uint64_t next = 0;  // of rotate()
  };
  // The layouts of a plan's tables, and for what they are. A program that calls with several roots in turn, say,
  // needs several again and again.
  struct LaidOut {
    const Plan* plan = nullptr;
    uint64_t element = 0, piece = 0, piece_elements = 0, count = 0;
    std::vector<uint64_t> part_lengths;
    std::vector<BlockLayout> tables;  // one per table of the plan, or more

    bool is_for(const Operation& operation, uint64_t its_piece) const;
  };
  struct PrivateRange {
    const char *begin = nullptr, *end = nullptr;
    bool contains(const char* first, const char* last) const { return first >= begin && last <= end; }
  };

  void lay_out(const Operation& operation, uint64_t piece);
  void bind(Operation* operation, uint64_t turn, Post* post);
  const BlockLayout& layout(BufferId buffer) const {
    return laid_out_->tables[plan_->own_tables[static_cast<size_t>(buffer)]];
  }
  bool must_stage(Operation* operation, BufferId buffer);
  bool read_where_it_lies(Operation* operation, BufferId buffer);
  bool read_by_choice(Operation* operation, uint64_t block);
  static bool is_tried(const Operation& operation);
  bool readable(const char* begin, uint64_t bytes);
  static char* grow(Block* block, uint64_t bytes);
  // Another part of the memory each time, so that a part has left the cache of the peer's core when it is used again.
  static char* rotate(Block* block, uint64_t bytes);

  OneWayCopies* const one_way_;
  HandoverChoice* const handovers_;
  const Neighbourhood& neighbourhood_;
  const Plan* plan_ = nullptr;
  std::array<LaidOut, 4> known_layouts_;
  LaidOut* laid_out_ = &known_layouts_[0];
  size_t oldest_layouts_ = 0;
  std::array<char*, kBuffers> base_{};    // the user's, and the scratch
  std::array<char*, kBuffers> staged_{};  // null: peers reach the user's buffer
  std::array<bool, kBuffers> read_privately_{};
  bool taken_whole_ = false, timed_ = false, may_be_written_ = false;
  Nanoseconds begun_ = 0;
  std::array<PrivateRange, 16> readable_{};  // where neighbours could read before
  size_t oldest_readable_ = 0;
  bool scratch_inlined_ = false;
  Block staging_input_, staging_output_;
  std::array<Block, 2> scratch_;  // for even and odd turns
};

}  // namespace ddl
