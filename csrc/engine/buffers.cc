#include "engine/buffers.h"

#include <algorithm>
#include <cstring>

#include "memory/arena.h"
#include "reduce/copy.h"

namespace ddl {

namespace {

constexpr uint64_t kBlockAlignment = 64;  // blocks of a split buffer begin on cache lines of their own
constexpr uint64_t kRotation = 2 << 20;   // more than a core's private cache, mostly
// From here on both ways are tried, and two ranks share the copies of a broadcast in either way. With less, whoever
// may read all of a block by the kernel does so, if that pays.
constexpr uint64_t kTried = 64 << 10;
// From here on, an owner that stages copies all of it to its staging, a piece ahead of the others, instead of a part
// to theirs.
constexpr uint64_t kStagedAhead = 8 << 20;
// From here on a broadcast begins by the kernel.
constexpr uint64_t kByKernelFirst = 2 << 20;

}  // namespace

PieceBuffers::~PieceBuffers() {
  for (Block* block : {&staging_input_, &staging_output_, &scratch_[0], &scratch_[1]}) {
    Arena::process().free(block->data);
  }
}

// Where the blocks of a table lie in the whole buffer, and which part of them the piece has.
void lay_out_table(const Operation& operation, size_t table, uint64_t piece, BlockLayout* layout) {
  const Plan& plan = *operation.plan;
  const uint64_t element = element_size(operation.descriptor.element());
  const uint64_t first = piece * operation.piece_elements;
  const auto in_piece = [&](uint64_t whole) {
    return std::min(operation.piece_elements, whole - std::min(whole, first));
  };
  const uint64_t length = in_piece(operation.count);
  const uint64_t unit = kBlockAlignment / element;
  const uint64_t units = (length + unit - 1) / unit;
  const uint64_t each = units / plan.parts, rest = units % plan.parts;
  const auto split_at = [&](uint64_t part) { return std::min(length, (part * each + std::min(part, rest)) * unit); };

  const size_t n = plan.tables[table].size();
  layout->spread.resize(n);
  layout->packed.resize(n);
  layout->bytes.resize(n);
  layout->spread_end = 0;
  uint64_t packed = 0, spread = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint32_t part = plan.tables[table][i];
    if (plan.split) {
      layout->spread[i] = (first + split_at(part)) * element;
      layout->bytes[i] = (split_at(part + 1) - split_at(part)) * element;
    } else {
      const uint64_t whole = operation.part_length(part);
      layout->spread[i] = (spread + std::min(whole, first)) * element;
      layout->bytes[i] = in_piece(whole) * element;
      spread += whole;
    }
    layout->spread_end = std::max(layout->spread_end, layout->spread[i] + layout->bytes[i]);
    layout->packed[i] = packed;
    packed += layout->bytes[i];
  }
  layout->packed_total = packed;
}

Ranges ranges_of(const Operation& operation, BufferId buffer, uint64_t piece) {
  BlockLayout layout;
  lay_out_table(operation, operation.plan->own_tables[static_cast<size_t>(buffer)], piece, &layout);
  Ranges ranges;
  for (size_t i = 0; i < layout.bytes.size(); ++i) {
    if (layout.bytes[i] == 0) continue;
    if (!ranges.empty() && ranges.back().offset + ranges.back().bytes == layout.spread[i]) {
      ranges.back().bytes += layout.bytes[i];
    } else {
      ranges.push_back({layout.spread[i], layout.bytes[i]});
    }
  }
  return ranges;
}

void PieceBuffers::begin(Operation* operation, uint64_t piece, uint64_t turn, Post* post) {
  lay_out(*operation, piece);
  bind(operation, turn, post);
}

bool PieceBuffers::LaidOut::is_for(const Operation& operation, uint64_t its_piece) const {
  return plan == operation.plan && element == element_size(operation.descriptor.element()) && piece == its_piece &&
         count == operation.count && piece_elements == operation.piece_elements &&
         part_lengths == operation.part_lengths;
}

void PieceBuffers::lay_out(const Operation& operation, uint64_t piece) {
  plan_ = operation.plan;
  if (laid_out_->is_for(operation, piece)) return;
  for (LaidOut& known : known_layouts_) {
    if (!known.is_for(operation, piece)) continue;
    laid_out_ = &known;
    return;
  }
  LaidOut& next = known_layouts_[oldest_layouts_];
  oldest_layouts_ = (oldest_layouts_ + 1) % known_layouts_.size();
  laid_out_ = &next;
  next.plan = nullptr;  // in case of an error below
  if (next.tables.size() < plan_->tables.size()) next.tables.resize(plan_->tables.size());  // never fewer
  for (size_t t = 0; t < plan_->tables.size(); ++t) lay_out_table(operation, t, piece, &next.tables[t]);
  next.element = element_size(operation.descriptor.element());
  next.piece = piece;
  next.piece_elements = operation.piece_elements;
  next.count = operation.count;
  next.part_lengths = operation.part_lengths;
  next.plan = plan_;
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

char* PieceBuffers::rotate(Block* block, uint64_t bytes) {
  const bool fresh = block->bytes < bytes;
  char* const data = grow(block, std::max(bytes, kRotation));
  // Touch the memory first: otherwise the time of the page faults would look like a distant peer.
  if (fresh) std::memset(data, 0, block->bytes);
  if (block->next > block->bytes || bytes > block->bytes - block->next) block->next = 0;
  char* const part = data + block->next;
  block->next += (bytes + kBlockAlignment - 1) / kBlockAlignment * kBlockAlignment;
  return part;
}

// To ask the kernel takes longer than all else that an operation does here, so the answer is remembered.
bool PieceBuffers::readable(const char* begin, uint64_t bytes) {
  const char* const end = begin + bytes;
  for (const PrivateRange& known : readable_) {
    if (known.contains(begin, end)) return true;
  }
  if (!KernelRead::possible(begin, bytes)) return false;
  readable_[oldest_readable_] = {begin, end};
  oldest_readable_ = (oldest_readable_ + 1) % readable_.size();
  return true;
}

bool PieceBuffers::must_stage(Operation* operation, BufferId buffer) {
  const auto b = static_cast<size_t>(buffer);
  read_privately_[b] = false;
  if (!plan_->any_exposed[b] || Arena::process().contains(base_[b], layout(buffer).spread_end)) return false;
  read_privately_[b] = plan_->only_copied[b] && read_where_it_lies(operation, buffer);
  return !read_privately_[b];
}

// Whether the kernel may copy private arrays of the operation, and both ranks of a copy can tell from their posts.
bool PieceBuffers::is_tried(const Operation& operation) {
  return operation.bytes >= kTried && !operation.plan->messages && operation.stage == nullptr;
}

// Whether peers read a private buffer in place.
bool PieceBuffers::read_where_it_lies(Operation* operation, BufferId buffer) {
  const auto b = static_cast<size_t>(buffer);
  const BlockLayout& blocks = layout(buffer);
  const bool is_input = buffer == BufferId::kInput, pulled = is_input && plan_->pulled;
  const bool must = neighbourhood_.must_read();
  const uint64_t block = pulled ? blocks.packed_total : blocks.packed_total / blocks.bytes.size();
  if (is_input && is_tried(*operation) && (pulled || plan_->symmetric)) {
    const uint64_t extent = pulled ? operation->bytes : blocks.spread_end;
    return neighbourhood_.can_read(block) && (must || read_by_choice(operation, block)) && readable(base_[b], extent);
  }
  return (!pulled || must || operation->bytes < kTried) && neighbourhood_.reads(block) &&
         readable(base_[b], blocks.spread_end);
}

// The first piece chooses for all.
bool PieceBuffers::read_by_choice(Operation* operation, uint64_t block) {
  if (!operation->handover) {
    // What is tried begins in the same way on all ranks. They see the same times, so they go on in the same way.
    const bool first = handovers_->tries() ? plan_->pulled && operation->bytes >= kByKernelFirst
                                           : plan_->symmetric && neighbourhood_.reads(block);
    operation->handover = handovers_->next(operation->descriptor.collective, operation->bytes, first);
    if (operation->handover->timed) begun_ = now_ns();
  }
  timed_ = operation->handover->timed;
  return operation->handover->by_kernel;
}

void PieceBuffers::bind(Operation* operation, uint64_t turn, Post* post) {
  const uint64_t scratch = layout(BufferId::kScratch).packed_total;
  const auto& exposed = plan_->any_exposed;
  scratch_inlined_ = post != nullptr && scratch > 0 && scratch <= Post::kInlineBytes && plan_->notifies &&
                     !exposed[0] && !exposed[1] && exposed[2];
  base_ = {const_cast<char*>(operation->input), operation->output,
           scratch_inlined_ ? post->inlined() : grow(&scratch_[turn % 2], scratch)};
  staged_ = {};
  timed_ = false;
  const bool stages_input = must_stage(operation, BufferId::kInput);
  taken_whole_ = stages_input && plan_->pulled && operation->bytes >= kStagedAhead;
  const bool stages_output = must_stage(operation, BufferId::kOutput);
  may_be_written_ = stages_output && plan_->given && plan_->only_written[1] && is_tried(*operation) &&
                    neighbourhood_.can_be_written() && readable(operation->output, operation->bytes);
  const BlockLayout &in = layout(BufferId::kInput), &out = layout(BufferId::kOutput);
  // If input and output share a staging, both sides write it. Otherwise one side writes and the other reads.
  const bool both_ways = stages_input && stages_output && operation->input == operation->output &&
                         plan_->own_tables[0] == plan_->own_tables[1];
  if (both_ways) {
    staged_[0] = staged_[1] = grow(&staging_output_, out.packed_total);
  } else {
    if (stages_input) staged_[0] = rotate(&staging_input_, in.packed_total);
    if (stages_output) staged_[1] = rotate(&staging_output_, out.packed_total);
  }
  if (!stages_input) return;
  const std::vector<bool>& reached = taken_whole_ ? plan_->takeable : plan_->exposed[0];
  for (size_t i = 0; i < in.bytes.size(); ++i) {
    if (!reached[i] || in.bytes[i] == 0) continue;
    char* const to = staged_[0] + in.packed[i];
    const char* const from = operation->input + in.spread[i];
    both_ways ? copy(to, from, in.bytes[i]) : one_way_->copy(to, from, in.bytes[i]);
  }
}

void PieceBuffers::end() {
  if (staged_[1] == nullptr) return;
  const BlockLayout& out = layout(BufferId::kOutput);
  for (size_t i = 0; i < out.bytes.size(); ++i) {
    if (!plan_->exposed[1][i] || out.bytes[i] == 0) continue;
    copy(base_[1] + out.spread[i], staged_[1] + out.packed[i], out.bytes[i]);
  }
}

}  // namespace ddl
