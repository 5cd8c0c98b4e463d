#include "engine/executor.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "memory/arena.h"

namespace ddl {

namespace {

constexpr uint64_t kTile = uint64_t{16} << 10;  // bytes reduced and copied at a time: stays in the first-level cache

size_t index(BufferId buffer) { return static_cast<size_t>(buffer); }

}  // namespace

Executor::Executor(int rank, int slot, const Neighbourhood& neighbourhood, Links* links)
    : rank_(rank), slot_(slot), neighbourhood_(neighbourhood), links_(links) {}

void Executor::start(const std::shared_ptr<Operation>& operation) {
  operation_ = operation;
  piece_ = operation->issued++;
  if (ordered()) ++turn_;
  entered_ = finished_ = false;
  channels_.fill(ChannelState{});
  sendings_.clear();
}

bool Executor::progress() {
  bool moved = false;
  if (!entered_) {
    if (operation_->plan->direct && !previous_turn_read()) return false;
    buffers_.begin(*operation_, piece_, turn_);
    entered_ = moved = true;
  }
  bool all_ended = true;
  const auto& steps = operation_->plan->channels;
  for (size_t c = 0; c < steps.size(); ++c) {
    moved |= progress_channel(static_cast<int>(c));
    all_ended &= channels_[c].next == steps[c].size();
  }
  for (const Sending& sending : sendings_) {
    if (sending.link->sent(sending.message)) continue;
    moved |= sending.link->progress();
    all_ended &= sending.link->sent(sending.message);
  }
  if (all_ended) {
    buffers_.end();
    finished_ = true;
  }
  return moved || all_ended;
}

void Executor::retire() {
  history_[turn_ % 2] = operation_->wire;
  if (ordered() && !neighbourhood_.neighbours().empty()) {
    Post& post = neighbourhood_.mine()->posts[stream_of(slot_, 0)][turn_ % 2];
    if (post.flag.load(std::memory_order_relaxed) < flag_of(turn_, 1)) describe(&post);  // the plan had no notify
    post.flag.store(flag_of(turn_, kDonePhase), std::memory_order_release);
    neighbourhood_.wake(neighbourhood_.neighbours(), lane_of_slot(slot_));
  }
  operation_.reset();
}

void Executor::abandon() {
  for (const Sending& sending : sendings_) sending.link->abandon();
  for (const ChannelState& channel : channels_) {
    if (channel.link != nullptr) channel.link->abandon();
  }
  operation_.reset();
}

// --- channels and steps -------------------------------------------------------------------------------------------

bool Executor::progress_channel(int c) {
  const auto& steps = operation_->plan->channels[static_cast<size_t>(c)];
  ChannelState& state = channels_[static_cast<size_t>(c)];
  bool moved = false;
  while (state.next < steps.size()) {
    const Step& step = steps[state.next];
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
        run_copy_from(c, step);
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

Header Executor::header(uint64_t bytes) const {
  const Descriptor& wire = operation_->wire;
  Header header;
  header.signature = wire.signature();
  header.count = wire.count;
  header.sequence = wire.sequence;
  header.history = wire.history;
  header.turn = turn_;
  header.bytes = bytes;
  return header;
}

bool Executor::run_message(int c, const Step& step) {
  ChannelState& state = channels_[static_cast<size_t>(c)];
  if (!state.posted) {
    if (state.link == nullptr || state.link->peer() != step.peers[0]) {
      state.link = links_->find(step.peers[0], stream_of(slot_, c));
      if (state.link == nullptr) return false;  // the peer has not connected yet
    }
    uint64_t bytes = 0;
    if (step.kind == StepKind::kSend) {
      parts_.clear();
      for (uint32_t block : step.src_blocks) {
        const Span span = buffers_.mine(step.src, block);
        bytes += span.bytes;
        if (span.bytes == 0) continue;
        if (!parts_.empty() && static_cast<char*>(parts_.back().iov_base) + parts_.back().iov_len == span.data) {
          parts_.back().iov_len += span.bytes;
        } else {
          parts_.push_back({span.data, span.bytes});
        }
      }
      const uint64_t message = state.link->send(header(bytes), parts_);
      const auto known = std::find_if(sendings_.begin(), sendings_.end(),
                                      [&](const Sending& sending) { return sending.link == state.link; });
      if (known == sendings_.end()) {
        sendings_.push_back({state.link, message});
      } else {
        known->message = message;
      }
      state.link->progress();
      return true;
    }
    landings_.clear();
    const bool reduces = step.kind == StepKind::kRecvReduce;
    for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
      const Span span = buffers_.mine(step.dst, step.dst_blocks[i]);
      bytes += span.bytes;
      if (span.bytes == 0) continue;
      landings_.push_back(
          {span.data, reduces ? buffers_.mine(step.src, step.src_blocks[i]).data : nullptr, span.bytes});
    }
    const Descriptor& d = operation_->descriptor;
    state.message = state.link->receive(header(bytes), landings_,
                                        {d.dtype, d.op, step.final ? operation_->divisor : 1, step.peers[0] < rank_});
    state.posted = true;
  }
  if (!state.link->received(state.message)) state.link->progress();
  if (!state.link->received(state.message)) return false;
  state.posted = false;
  return true;
}

// --- meeting in shared memory -------------------------------------------------------------------------------------

bool Executor::previous_turn_read() const {
  if (turn_ <= 2 || !ordered()) return true;
  const uint64_t needed = flag_of(turn_ - 2, kDonePhase);
  for (int peer : neighbourhood_.neighbours()) {
    const Post& post = neighbourhood_.board(peer)->posts[stream_of(slot_, 0)][turn_ % 2];
    const uint64_t flag = post.flag.load(std::memory_order_acquire);
    if (flag < needed) return false;
    // A root may end a turn without having looked at anybody; that its call did not match comes out here.
    const Descriptor theirs = descriptor_from(post.signature, post.count, post.sequence, post.packed >> kBuffers);
    std::atomic_thread_fence(std::memory_order_acquire);
    const bool intact = flag == needed && post.flag.load(std::memory_order_relaxed) == needed;
    if (intact && !(theirs == history_[turn_ % 2])) throw Mismatch(peer, history_[turn_ % 2], theirs);
  }
  return true;
}

void Executor::describe(Post* post) const {
  post->flag.store(flag_of(turn_, 0), std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  post->signature = operation_->wire.signature();
  post->count = operation_->wire.count;
  post->sequence = operation_->wire.sequence;
  post->packed = operation_->wire.history << kBuffers;
}

void Executor::notify(int c, const Step& step) {
  Post& post = neighbourhood_.mine()->posts[stream_of(slot_, c)][turn_ % 2];
  if (step.phase == 1) {
    describe(&post);
    const auto where = [&](BufferId buffer) {
      char* base = buffers_.base(buffer);
      const bool exposed = operation_->plan->exposed[index(buffer)] && base != nullptr;
      return exposed ? Arena::process().offset(base) : kNowhere;
    };
    post.input = where(BufferId::kInput);
    post.output = where(BufferId::kOutput);
    post.scratch = where(BufferId::kScratch);
    for (BufferId buffer : {BufferId::kInput, BufferId::kOutput, BufferId::kScratch}) {
      post.packed = post.packed | static_cast<uint64_t>(buffers_.packed(buffer)) << index(buffer);
    }
  }
  post.flag.store(flag_of(turn_, step.phase), std::memory_order_release);
  neighbourhood_.wake(neighbourhood_.neighbours(), lane_of_slot(slot_));
}

bool Executor::awaited(int c, const Step& step) const {
  const uint64_t needed = flag_of(turn_, step.phase);
  for (int peer : step.peers) {
    const Post& post = neighbourhood_.board(peer)->posts[stream_of(slot_, c)][turn_ % 2];
    if (post.flag.load(std::memory_order_acquire) < needed) return false;
    check_post(peer, post);
  }
  return true;
}

void Executor::check_post(int peer, const Post& post) const {
  const Descriptor theirs = descriptor_from(post.signature, post.count, post.sequence, post.packed >> kBuffers);
  if (!(theirs == operation_->wire)) throw Mismatch(peer, operation_->wire, theirs);
}

void Executor::run_reduce(int c, const Step& step, const Step* copy_to) {
  const Descriptor& d = operation_->descriptor;
  const uint64_t divisor = step.final ? operation_->divisor : 1;
  const size_t sources = step.peers.size() + 1;
  const size_t me =
      static_cast<size_t>(std::lower_bound(step.peers.begin(), step.peers.end(), rank_) - step.peers.begin());
  operands_.resize(sources);
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span to = buffers_.mine(step.dst, step.dst_blocks[i]);
    if (to.bytes == 0) continue;
    bases_.clear();
    targets_.clear();
    for (size_t s = 0; s < sources; ++s) {
      if (s == me) {
        bases_.push_back(buffers_.mine(step.src, step.src_blocks[i]).data);
      } else {
        const size_t p = s < me ? s : s - 1;
        bases_.push_back(theirs(c, step.peers[p], step.src, step.theirs[p], i));
      }
    }
    if (copy_to != nullptr) {
      for (size_t p = 0; p < copy_to->peers.size(); ++p) {
        targets_.push_back(theirs(c, copy_to->peers[p], copy_to->dst, copy_to->theirs[p], i));
      }
    }
    const uint64_t element = element_size(d.dtype);
    for (uint64_t at = 0; at < to.bytes; at += kTile) {
      const uint64_t bytes = std::min(kTile, to.bytes - at);
      for (size_t s = 0; s < sources; ++s) operands_[s] = bases_[s] + at;
      reduce(d.dtype, d.op, to.data + at, operands_.data(), static_cast<int>(sources), bytes / element, divisor);
      for (char* target : targets_) std::memcpy(target + at, to.data + at, bytes);
    }
  }
}

void Executor::run_copy_from(int c, const Step& step) {
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span to = buffers_.mine(step.dst, step.dst_blocks[i]);
    if (to.bytes > 0) std::memcpy(to.data, theirs(c, step.peers[0], step.src, step.theirs[0], i), to.bytes);
  }
}

void Executor::run_copy_to(int c, const Step& step) {
  for (size_t i = 0; i < step.src_blocks.size(); ++i) {
    const Span from = buffers_.mine(step.src, step.src_blocks[i]);
    if (from.bytes == 0) continue;
    for (size_t p = 0; p < step.peers.size(); ++p) {
      std::memcpy(theirs(c, step.peers[p], step.dst, step.theirs[p], i), from.data, from.bytes);
    }
  }
}

void Executor::run_copy(const Step& step) {
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span from = buffers_.mine(step.src, step.src_blocks[i]), to = buffers_.mine(step.dst, step.dst_blocks[i]);
    if (from.data != to.data && to.bytes > 0) std::memcpy(to.data, from.data, to.bytes);
  }
}

// --- where things are ---------------------------------------------------------------------------------------------

char* Executor::theirs(int c, int peer, BufferId buffer, const Remote& remote, size_t i) const {
  const Post& post = neighbourhood_.board(peer)->posts[stream_of(slot_, c)][turn_ % 2];
  const uint64_t base = buffer == BufferId::kInput    ? post.input
                        : buffer == BufferId::kOutput ? post.output
                                                      : post.scratch;
  const BlockLayout& layout = buffers_.layout(remote.table);
  const uint32_t block = remote.blocks[i];
  const bool packed = (post.packed >> index(buffer) & 1) != 0;
  const uint64_t offset = packed ? layout.packed[block] : layout.spread[block];
  const uint64_t size = neighbourhood_.memory(peer)->size();
  if (base > size || offset > size - base || layout.bytes[block] > size - base - offset) {
    throw Error(ErrorKind::kProtocolError,
                "rank " + std::to_string(peer) + " posted a buffer that does not lie in its shared memory");
  }
  return neighbourhood_.memory(peer)->at(base + offset);
}

// --- waiting ------------------------------------------------------------------------------------------------------

std::vector<int> Executor::waiting_for() const {
  std::vector<int> peers;
  if (idle() || finished_) return peers;
  if (!entered_) return neighbourhood_.neighbours();
  const auto& plan_channels = operation_->plan->channels;
  for (size_t c = 0; c < plan_channels.size(); ++c) {
    if (channels_[c].next == plan_channels[c].size()) continue;
    const Step& step = plan_channels[c][channels_[c].next];
    for (int peer : step.peers) {
      if (step.kind == StepKind::kAwait) {
        const Post& post = neighbourhood_.board(peer)->posts[stream_of(slot_, static_cast<int>(c))][turn_ % 2];
        if (post.flag.load(std::memory_order_acquire) >= flag_of(turn_, step.phase)) continue;
      }
      peers.push_back(peer);
    }
  }
  for (const Sending& sending : sendings_) {
    if (!sending.link->sent(sending.message)) peers.push_back(sending.link->peer());
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

void Executor::poll_fds(std::vector<std::pair<int, bool>>* fds) const {
  if (idle()) return;
  for (const ChannelState& channel : channels_) {
    if (channel.posted && channel.link->poll_fd() >= 0) fds->emplace_back(channel.link->poll_fd(), false);
  }
  for (const Sending& sending : sendings_) {
    if (sending.link->poll_fd() >= 0 && !sending.link->sent(sending.message)) {
      fds->emplace_back(sending.link->poll_fd(), true);
    }
  }
}

}  // namespace ddl
