#include "engine/executor.h"

#include <algorithm>
#include <string>

#include "memory/arena.h"
#include "reduce/copy.h"

namespace ddl {

namespace {

size_t index(BufferId buffer) { return static_cast<size_t>(buffer); }

constexpr uint64_t kBeyondCaches = 8 << 20;  // bytes of an operation

// Of Post::packed.
bool is_packed(uint64_t packed, BufferId buffer) { return (packed >> index(buffer) & 1) != 0; }

Error outside(int peer, const char* what) {
  return Error(ErrorKind::kProtocolError,
               "rank " + std::to_string(peer) + " posted a buffer that does not lie in " + what);
}

Error unreadable(int peer, uint64_t bytes) {
  return Error(ErrorKind::kProtocolError,
               std::to_string(bytes) + " bytes of rank " + std::to_string(peer) +
                   "'s array cannot be read any more; was it freed before the operation had ended?");
}

}  // namespace

Executor::Executor(int rank, int slot, const Neighbourhood& neighbourhood, Links* links)
    : rank_(rank), slot_(slot), neighbourhood_(neighbourhood), links_(links) {}

Post& Executor::my_post(int channel, uint64_t turn) const {
  return neighbourhood_.own_board()->posts[stream_of(slot_, channel)][turn % 2];
}

Post& Executor::post_of(int peer, int channel, uint64_t turn) const {
  return neighbourhood_.board(peer)->posts[stream_of(slot_, channel)][turn % 2];
}

void Executor::start(Operation* operation) {
  operation_ = operation;
  piece_ = operation->issued++;
  if (ordered()) ++turn_;
  entered_ = finished_ = false;
  for (size_t c = 0; c < operation->plan->channels.size(); ++c) channels_[c] = ChannelState{};
  operation->source.store(-1, std::memory_order_relaxed);
  sendings_.clear();
}

bool Executor::progress() {
  bool moved = false;
  const auto& steps = operation_->plan->channels;
  if (!entered_) {
    if (operation_->stage != nullptr) {
      if (!operation_->stage->arrived(piece_)) return false;
      operation_->stage->check();
    }
    if (!previous_turn_read()) return false;
    buffers_.begin(*operation_, piece_, turn_, steps.size() == 1 ? &my_post(0, turn_) : nullptr);
    entered_ = moved = true;
  }
  bool all_ended = true;
  for (size_t c = 0; c < steps.size(); ++c) {
    moved |= progress_channel(static_cast<int>(c));
    all_ended &= channels_[c].next == steps[c].size();
  }
  for (const Sending& sending : sendings_) {
    if (sending.over()) continue;
    moved |= sending.link->progress();
    all_ended &= sending.over();
  }
  if (all_ended) {
    buffers_.end();
    finished_ = true;
  }
  wake_neighbours();
  return moved || all_ended;
}

// To look at the others' sleep words, a fence must follow the flag's store, and the fence waits for the flag's cache
// line. So this comes after the first look at the others' flags, whose lines travel at the same time.
void Executor::wake_neighbours() {
  if (!wake_due_) return;
  wake_due_ = false;
  neighbourhood_.wake(neighbourhood_.neighbours(), lane_of_slot(slot_));
}

void Executor::retire() {
  if (operation_->stage != nullptr) operation_->stage->left(piece_);
  history_[turn_ % 2] = operation_->wire;
  if (ordered() && !operation_->plan->notifies && !neighbourhood_.neighbours().empty()) {
    // The others do not know yet that this turn has begun, or that it has ended.
    Post& post = my_post(0, turn_);
    describe(&post);
    post.flag.store(flag_of(turn_, kDonePhase), std::memory_order_release);
    wake_due_ = true;
    wake_neighbours();
  }
  operation_ = nullptr;
}

void Executor::abandon() {
  for (const Sending& sending : sendings_) sending.link->abandon();
  for (size_t c = 0; c < operation_->plan->channels.size(); ++c) {
    if (channels_[c].link != nullptr) channels_[c].link->abandon();
  }
  operation_ = nullptr;
}

// --- channels and steps -------------------------------------------------------------------------------------------

bool Executor::progress_channel(int c) {
  const auto& steps = operation_->plan->channels[static_cast<size_t>(c)];
  ChannelState& state = channels_[static_cast<size_t>(c)];
  bool moved = false;
  while (state.next < steps.size()) {
    const Step& step = steps[state.next];
    if (step.after_sends && !sends_over(c)) return moved;
    size_t done = 1;
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kRecv:
      case StepKind::kRecvReduce: {
        const bool ended = run_message(c, step);
        if (!ended) return moved;
        break;
      }
      case StepKind::kReduceFrom:
        run_reduce(c, step, step.fused_with_next ? &steps[state.next + 1] : nullptr);
        done = step.fused_with_next ? 2 : 1;
        break;
      case StepKind::kCopyFrom:
        if (!run_copy_from(c, step)) return moved;  // the peer's process has ended: see Lane::check_on_peers
        break;
      case StepKind::kCopyTo:
        run_copy_to(c, step);
        break;
      case StepKind::kCopy:
        run_copy(step);
        break;
      case StepKind::kNotify:
        notify(c, step);
        break;
      case StepKind::kAwait:
        if (!awaited(c, step)) return moved;
        break;
    }
    state.next += done;
    moved = true;
  }
  return moved;
}

WireCodec Executor::codec() const {
  const Descriptor& d = operation_->descriptor;
  const bool sums = d.op == ReduceOp::kSum || d.op == ReduceOp::kAverage;
  return d.dtype == DType::kFloat32 && sums ? operation_->plan->wire : WireCodec::kNone;
}

char* Executor::residual(BufferId buffer, uint32_t block) const {
  if (operation_->residual == nullptr || codec() != WireCodec::kMxInt8) return nullptr;
  return operation_->residual + buffers_.place(buffer, block);
}

SegmentHeader Executor::header(uint64_t bytes) const {
  const Descriptor& wire = operation_->wire;
  SegmentHeader header;
  header.signature = wire.signature();
  header.count = wire.count;
  header.sequence = wire.sequence;
  header.history = wire.history;
  header.turn = turn_;
  header.codec = static_cast<uint8_t>(codec());
  header.bytes = codec() == WireCodec::kNone ? bytes : coded_bytes(codec(), bytes / sizeof(float));
  return header;
}

Link* Executor::link_to(int c, int peer) {
  std::vector<Link*>& known = known_links_[static_cast<size_t>(c)];
  const auto at = static_cast<size_t>(peer);
  if (known.size() <= at) known.resize(at + 1);
  if (known[at] == nullptr) known[at] = links_->find(peer, stream_of(slot_, c));
  return known[at];
}

const Step* Executor::unmatched() const {
  if (slot_ != kPointToPointSlot || idle() || finished_ || channels_[0].next > 0 || channels_[0].posted)
    return nullptr;
  const Step& message = operation_->plan->channels[0][0];  // the only one of a plan in this lane
  return message.kind == StepKind::kRecv ? &message : nullptr;
}

bool Executor::choose_source(const Step& step) {
  for (int peer : step.peers) {
    Link* const link = link_to(0, peer);
    if (link == nullptr || !link->announced()) continue;
    channels_[0].link = link;
    return true;
  }
  return false;
}

bool Executor::run_message(int c, const Step& step) {
  ChannelState& state = channels_[static_cast<size_t>(c)];
  if (!state.posted) {
    if (step.from_any()) {
      if (!choose_source(step)) return false;
    } else if (state.link == nullptr || state.link->peer() != step.peers[0]) {
      state.link = link_to(c, step.peers[0]);
      if (state.link == nullptr) return false;  // the peer has not connected yet
    }
    uint64_t bytes = 0;
    if (step.kind == StepKind::kSend) {
      parts_.clear();
      for (uint32_t block : step.src_blocks) {
        const Span span = buffers_.span(step.src, block);
        bytes += span.bytes;
        if (span.bytes == 0) continue;
        if (!parts_.empty() && static_cast<char*>(parts_.back().iov_base) + parts_.back().iov_len == span.data) {
          parts_.back().iov_len += span.bytes;
        } else {
          parts_.push_back({span.data, span.bytes});
        }
      }
      char* const dropped = step.final || bytes == 0 ? nullptr : residual(step.src, step.src_blocks[0]);
      const uint64_t message = state.link->send(header(bytes), parts_, dropped);
      const auto known = std::find_if(sendings_.begin(), sendings_.end(),
                                      [&](const Sending& sending) { return sending.link == state.link; });
      if (known == sendings_.end()) {
        sendings_.push_back({state.link, message, c});
      } else {
        known->message = message;
      }
      state.link->progress();
      return true;
    }
    landings_.clear();
    const bool reduces = step.kind == StepKind::kRecvReduce;
    for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
      const Span span = buffers_.span(step.dst, step.dst_blocks[i]);
      bytes += span.bytes;
      if (span.bytes == 0) continue;
      landings_.push_back({span.data, reduces ? buffers_.span(step.src, step.src_blocks[i]).data : nullptr,
                           span.bytes, reduces && step.final ? residual(step.dst, step.dst_blocks[i]) : nullptr});
    }
    const Descriptor& d = operation_->descriptor;
    operation_->source.store(state.link->peer(), std::memory_order_relaxed);
    state.message = state.link->receive(
        header(bytes), landings_,
        {d.dtype, d.op, step.final ? operation_->divisor : 1, state.link->peer() < rank_, step.final});
    state.posted = true;
  }
  if (!state.link->received(state.message)) state.link->progress();
  if (!state.link->received(state.message)) return false;
  state.posted = false;
  return true;
}

// --- meeting in shared memory -------------------------------------------------------------------------------------

// This turn uses the posts and the scratch of two turns ago, which every neighbour must have ended. A neighbour that
// has begun the last turn has done so. Mostly this rank has seen that already, when it met the others there.
bool Executor::previous_turn_read() const {
  if (turn_ <= 2 || !ordered() || met_turn_ + 1 == turn_) return true;
  const uint64_t ended = flag_of(turn_ - 2, kDonePhase), begun = flag_of(turn_ - 1, 0);
  for (int peer : neighbourhood_.neighbours()) {
    const Post& post = post_of(peer, 0, turn_);
    const uint64_t flag = post.flag.load(std::memory_order_acquire);
    if (flag < ended && post_of(peer, 0, turn_ - 1).flag.load(std::memory_order_acquire) < begun) return false;
    // A root may end a turn without a look at the others. Here it finds that its call did not match.
    const Descriptor peer_call =
        descriptor_from(post.signature, post.count, post.sequence, post.packed >> kHistoryShift);
    const bool described = flag >= flag_of(turn_ - 2, 1) && flag <= ended;
    const bool intact = described && post.flag.load(std::memory_order_relaxed) == flag;
    if (intact && !(peer_call == history_[turn_ % 2])) throw Mismatch(peer, history_[turn_ % 2], peer_call);
  }
  return true;
}

void Executor::describe(Post* post) const {
  const Descriptor& wire = operation_->wire;
  // A release, also for a rank that waits for the end of the turn two before this one, and reads this instead.
  post->flag.store(flag_of(turn_, 0), std::memory_order_release);
  post->signature = wire.signature();
  post->count = wire.count;
  post->sequence = wire.sequence;
  post->packed = wire.history << kHistoryShift;
}

void Executor::notify(int c, const Step& step) {
  Post& post = my_post(c, turn_);
  if (step.phase == 1) {
    describe(&post);
    uint64_t packed = buffers_.scratch_inlined() ? kInlined : 0;
    for (BufferId buffer : {BufferId::kInput, BufferId::kOutput, BufferId::kScratch}) {
      packed |= static_cast<uint64_t>(buffers_.packed(buffer)) << index(buffer);
      if (buffers_.scratch_inlined()) continue;
      char* base = buffers_.exposed_base(buffer);
      const bool exposed = operation_->plan->any_exposed[index(buffer)] && base != nullptr;
      post.words[index(buffer)] = !exposed                          ? kNowhere
                                  : buffers_.read_privately(buffer) ? kPrivate | reinterpret_cast<uintptr_t>(base)
                                                                    : Arena::process().offset(base);
    }
    post.packed = operation_->wire.history << kHistoryShift | packed;
  }
  post.flag.store(flag_of(turn_, step.phase), std::memory_order_release);
  wake_due_ = true;
}

bool Executor::awaited(int c, const Step& step) {
  const uint64_t needed = flag_of(turn_, step.phase);
  for (int peer : step.peers) {
    const Post& post = post_of(peer, c, turn_);
    if (post.flag.load(std::memory_order_acquire) < needed) return false;
    check_post(peer, post);
  }
  if (step.peers.size() == neighbourhood_.neighbours().size()) met_turn_ = turn_;
  return true;
}

void Executor::check_post(int peer, const Post& post) const {
  if (post.packed >> kHistoryShift == operation_->wire.history) return;
  const Descriptor peer_call =
      descriptor_from(post.signature, post.count, post.sequence, post.packed >> kHistoryShift);
  throw Mismatch(peer, operation_->wire, peer_call);
}

void Executor::run_reduce(int c, const Step& step, const Step* copy_to) {
  const Descriptor& d = operation_->descriptor;
  const uint64_t divisor = step.final ? operation_->divisor : 1;
  const size_t sources = step.peers.size() + 1;
  const size_t me =
      static_cast<size_t>(std::lower_bound(step.peers.begin(), step.peers.end(), rank_) - step.peers.begin());
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span to = buffers_.span(step.dst, step.dst_blocks[i]);
    if (to.bytes == 0) continue;
    operands_.clear();
    for (size_t s = 0; s < sources; ++s) {
      if (s == me) {
        operands_.push_back(buffers_.span(step.own(), step.src_blocks[i]).data);
      } else {
        const size_t p = s < me ? s : s - 1;
        operands_.push_back(peer_data(c, step.peers[p], step.src, step.remotes[p], i));
      }
    }
    targets_.assign(1, to.data);
    if (copy_to != nullptr) {
      for (size_t p = 0; p < copy_to->peers.size(); ++p) {
        targets_.push_back(peer_data(c, copy_to->peers[p], copy_to->dst, copy_to->remotes[p], i));
      }
    }
    reduce(d.dtype, d.op, targets_.data(), static_cast<int>(targets_.size()), operands_.data(),
           static_cast<int>(sources), to.bytes / element_size(d.dtype), divisor);
  }
}

// Results too large for any cache are written past the caches: then their lines need not be read first.
Stores Executor::stores(bool staged) const {
  const bool last = !staged && !operation_->plan->messages;  // no other rank needs them
  return last && operation_->bytes >= kBeyondCaches ? Stores::kStreaming : Stores::kCached;
}

bool Executor::run_copy_from(int c, const Step& step) {
  const int peer = step.peers[0];
  // Scratch is never private, and may itself be what the words hold.
  const bool shared = step.src == BufferId::kScratch;
  const uint64_t base = shared ? kNowhere : uint64_t{post_of(peer, c, turn_).words[index(step.src)]};
  const bool privately = base != kNowhere && (base & kPrivate) != 0;
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span to = buffers_.span(step.dst, step.dst_blocks[i]);
    if (to.bytes == 0) continue;
    if (privately) {
      const Remote& remote = step.remotes[0];
      const uint64_t address = (base & ~kPrivate) + buffers_.layout(remote.table).spread[remote.blocks[i]];
      const KernelRead::Outcome outcome = neighbourhood_.read(peer, to.data, address, to.bytes);
      if (outcome == KernelRead::Outcome::kRefused) throw unreadable(peer, to.bytes);
      if (outcome == KernelRead::Outcome::kGone) return false;
    } else {
      const char* const from = peer_data(c, peer, step.src, step.remotes[0], i);
      copy(to.data, from, to.bytes, stores(buffers_.packed(step.dst)));
    }
  }
  return true;
}

void Executor::run_copy_to(int c, const Step& step) {
  for (size_t i = 0; i < step.src_blocks.size(); ++i) {
    const Span from = buffers_.span(step.src, step.src_blocks[i]);
    if (from.bytes == 0) continue;
    for (size_t p = 0; p < step.peers.size(); ++p) {
      char* const to = peer_data(c, step.peers[p], step.dst, step.remotes[p], i);
      const bool staged = is_packed(post_of(step.peers[p], c, turn_).packed, step.dst);
      staged ? one_way_.copy(to, from.data, from.bytes) : copy(to, from.data, from.bytes, stores(staged));
    }
  }
}

void Executor::run_copy(const Step& step) {
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span from = buffers_.span(step.src, step.src_blocks[i]), to = buffers_.span(step.dst, step.dst_blocks[i]);
    if (from.data != to.data && to.bytes > 0) copy(to.data, from.data, to.bytes, stores(buffers_.packed(step.dst)));
  }
}

// --- peers' blocks ------------------------------------------------------------------------------------------------

char* Executor::peer_data(int c, int peer, BufferId buffer, const Remote& remote, size_t i) const {
  Post& post = post_of(peer, c, turn_);
  const BlockLayout& layout = buffers_.layout(remote.table);
  const uint32_t block = remote.blocks[i];
  const uint64_t bytes = layout.bytes[block], packed = post.packed;
  const uint64_t offset = is_packed(packed, buffer) ? layout.packed[block] : layout.spread[block];
  if ((packed & kInlined) != 0 && buffer == BufferId::kScratch) {
    if (offset > Post::kInlineBytes || bytes > Post::kInlineBytes - offset) throw outside(peer, "its post");
    return post.inlined() + offset;
  }
  const uint64_t base = post.words[index(buffer)], size = neighbourhood_.memory(peer)->size();
  if (base > size || offset > size - base || bytes > size - base - offset) throw outside(peer, "its shared memory");
  return neighbourhood_.memory(peer)->at(base + offset);
}

}  // namespace ddl
