#include "engine/buffers.h"

#include <algorithm>
#include <cstring>

#include "memory/arena.h"

namespace ddl {

namespace {

constexpr uint64_t kBlockAlignment = 64;  // blocks of a split buffer begin on cache lines of their own

}  // namespace

PieceBuffers::~PieceBuffers() {
  for (Block* block : {&staged_input_, &staged_output_, &scratch_[0], &scratch_[1]}) {
    Arena::process().free(block->data);
  }
}

void PieceBuffers::begin(const Operation& operation, uint64_t piece, uint64_t turn) {
  plan_ = operation.plan.get();
  user_output_ = operation.output;
  lay_out(operation, piece);
  bind(operation, turn);
}

void PieceBuffers::lay_out(const Operation& operation, uint64_t piece) {
  const uint64_t element = element_size(operation.descriptor.dtype);
  const uint64_t first = piece * operation.piece_elements;
  const auto in_piece = [&](uint64_t whole) {
    return std::min(operation.piece_elements, whole - std::min(whole, first));
  };
  const uint64_t length = in_piece(operation.count);
  const uint64_t unit = kBlockAlignment / element;
  const uint64_t units = (length + unit - 1) / unit;
  const uint64_t each = units / plan_->parts, rest = units % plan_->parts;
  const auto split_at = [&](uint64_t part) { return std::min(length, (part * each + std::min(part, rest)) * unit); };

  layouts_.resize(plan_->tables.size());
  for (size_t t = 0; t < plan_->tables.size(); ++t) {
    BlockLayout& layout = layouts_[t];
    const size_t n = plan_->tables[t].size();
    layout.spread.resize(n);
    layout.packed.resize(n);
    layout.bytes.resize(n);
    uint64_t packed = 0, spread = 0;
    for (size_t i = 0; i < n; ++i) {
      const uint32_t part = plan_->tables[t][i];
      if (plan_->split) {
        layout.spread[i] = (first + split_at(part)) * element;
        layout.bytes[i] = (split_at(part + 1) - split_at(part)) * element;
      } else {
        const uint64_t whole = operation.part_length(part);
        layout.spread[i] = (spread + std::min(whole, first)) * element;
        layout.bytes[i] = in_piece(whole) * element;
        spread += whole;
      }
      layout.packed[i] = packed;
      packed += layout.bytes[i];
    }
    layout.packed_total = packed;
  }
}

char* PieceBuffers::grow(Block* block, uint64_t bytes) {
  if (block->bytes < bytes) {
    Arena::process().free(block->data);
    *block = Block{};
    block->data = static_cast<char*>(Arena::process().allocate(bytes));
    block->bytes = bytes;
  }
  return block->data;
}

bool PieceBuffers::must_stage(BufferId buffer) const {
  if (!plan_->exposed[static_cast<size_t>(buffer)]) return false;
  const BlockLayout& blocks = layout(buffer);
  uint64_t end = 0;
  for (size_t i = 0; i < blocks.bytes.size(); ++i) end = std::max(end, blocks.spread[i] + blocks.bytes[i]);
  return !Arena::process().contains(base(buffer), end);
}

void PieceBuffers::bind(const Operation& operation, uint64_t turn) {
  const uint64_t scratch = layout(BufferId::kScratch).packed_total;
  base_ = {const_cast<char*>(operation.input), operation.output, grow(&scratch_[turn % 2], scratch)};
  packed_ = {false, false, true};

  const bool in_place = operation.input == operation.output;
  const bool stage_output = must_stage(BufferId::kOutput) || (in_place && must_stage(BufferId::kInput));
  const bool stage_input = must_stage(BufferId::kInput) || (in_place && stage_output);
  if (stage_output) {
    base_[1] = grow(&staged_output_, layout(BufferId::kOutput).packed_total);
    packed_[1] = true;
  }
  if (stage_input) {
    const BlockLayout& in = layout(BufferId::kInput);
    base_[0] = in_place ? base_[1] : grow(&staged_input_, in.packed_total);
    packed_[0] = true;
    for (size_t i = 0; i < in.bytes.size(); ++i) {
      if (in.bytes[i] > 0) std::memcpy(base_[0] + in.packed[i], operation.input + in.spread[i], in.bytes[i]);
    }
  }
}

void PieceBuffers::end() {
  if (!packed_[1]) return;
  const BlockLayout& out = layout(BufferId::kOutput);
  for (size_t i = 0; i < out.bytes.size(); ++i) {
    if (out.bytes[i] > 0) std::memcpy(user_output_ + out.spread[i], base_[1] + out.packed[i], out.bytes[i]);
  }
}

}  // namespace ddl
