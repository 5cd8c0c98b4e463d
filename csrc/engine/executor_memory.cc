// Steps of the executor that meet the other ranks of the host in shared memory, and read and write there.
#include <algorithm>
#include <string>

#include "engine/executor.h"
#include "memory/arena.h"
#include "reduce/copy.h"

namespace ddl {

namespace {

size_t index(BufferId buffer) { return static_cast<size_t>(buffer); }

constexpr uint64_t kBeyondCaches = 16 << 20;  // bytes of an operation

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

Error unwritable(int peer, uint64_t bytes) {
  return Error(ErrorKind::kProtocolError,
               std::to_string(bytes) + " bytes of this rank's array cannot be written to rank " +
                   std::to_string(peer) + "'s any more; was one of them freed before the operation had ended?");
}

}  // namespace

Post& Executor::my_post(int channel, uint64_t turn) const {
  return neighbourhood_.own_board()->posts[stream_of(slot_, channel)][turn % 2];
}

Post& Executor::post_of(int peer, int channel, uint64_t turn) const {
  return neighbourhood_.board(peer)->posts[stream_of(slot_, channel)][turn % 2];
}

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

// An operation counts from when all have begun it. A rank that does not say when has done so just now, or before.
void Executor::note_begin_of_timed(int c, const Step& step) {
  Nanoseconds begin = buffers_.begun();
  for (int peer : step.peers) {
    const uint64_t begun = post_of(peer, c, turn_).begun;
    if (begun != 0) {
      begin = std::max(begin, static_cast<Nanoseconds>(begun));
    } else if (!entering_) {
      begin = now_ns();
    }
  }
  handovers_->note_begin(*operation_->handover, begin);
}

// All have ended the turn before the last one. None ends this one before this rank has begun it.
void Executor::note_end_of_timed() {
  HandoverChoice::Ticket& ticket = tickets_[turn_ % 2];
  if (!ticket.timed) return;
  uint64_t end = my_post(0, turn_).ended;
  for (int peer : neighbourhood_.neighbours()) end = std::max<uint64_t>(end, post_of(peer, 0, turn_).ended);
  handovers_->note_end(ticket, static_cast<Nanoseconds>(end));
  ticket = {};
  awaits_ends_ = tickets_[(turn_ + 1) % 2].timed;
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
    uint64_t packed = (buffers_.scratch_inlined() ? kInlined : 0) | (buffers_.taken_whole() ? kWhole : 0) |
                      (tells_end_ ? kTimed : 0);
    for (BufferId buffer : {BufferId::kInput, BufferId::kOutput, BufferId::kScratch}) {
      packed |= static_cast<uint64_t>(buffers_.packed(buffer)) << index(buffer);
      if (buffers_.scratch_inlined()) continue;
      char* base = buffers_.exposed_base(buffer);
      const bool exposed = operation_->plan->any_exposed[index(buffer)] && base != nullptr;
      post.words[index(buffer)] = !exposed                          ? kNowhere
                                  : buffers_.read_privately(buffer) ? kPrivate | reinterpret_cast<uintptr_t>(base)
                                                                    : Arena::process().offset(base);
    }
    if (operation_->plan->given) {
      char* const output = buffers_.private_output();
      post.words[kPrivateOutput] = output == nullptr ? kNowhere : kPrivate | reinterpret_cast<uintptr_t>(output);
    }
    post.begun = buffers_.timed() && piece_ == 0 ? static_cast<uint64_t>(buffers_.begun()) : 0;
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
  if (step.phase == 1 && piece_ == 0 && buffers_.timed()) note_begin_of_timed(c, step);
  return true;
}

void Executor::check_post(int peer, const Post& post) const {
  if (post.packed >> kHistoryShift == operation_->wire.history) return;
  const Descriptor peer_call =
      descriptor_from(post.signature, post.count, post.sequence, post.packed >> kHistoryShift);
  throw Mismatch(peer, operation_->wire, peer_call);
}

// False: a rank that the result goes to has failed.
bool Executor::run_reduce(int c, const Step& step, const Step* copy_to) {
  if (copy_to == nullptr) {
    reduce_blocks(c, step, nullptr);
    return true;
  }
  const Neighbourhood::StoreSection section(neighbourhood_, lane_of_slot(slot_), copy_to->peers.data(),
                                            copy_to->peers.size());
  if (section.open()) reduce_blocks(c, step, copy_to);
  return section.open();
}

void Executor::reduce_blocks(int c, const Step& step, const Step* copy_to) {
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
    reduce(d.element(), d.op, targets_.data(), static_cast<int>(targets_.size()), operands_.data(),
           static_cast<int>(sources), to.bytes / element_size(d.element()), divisor);
  }
}

// Results too large for any cache are written past the caches: then their lines need not be read first.
Stores Executor::stores(bool staged) const {
  const bool last = !staged && !operation_->plan->messages;  // no other rank needs them
  return last && operation_->bytes >= kBeyondCaches ? Stores::kStreaming : Stores::kCached;
}

// Both ranks find the same.
Executor::Way Executor::way(const Post& from, const Post& to, const Step& step) const {
  const uint64_t place = from.words[index(step.src)];
  if (!step.pull || (from.packed & kInlined) != 0 || place == kNowhere) return Way::kWritten;
  if (is_packed(from.packed, step.src)) return (from.packed & kWhole) != 0 ? Way::kTaken : Way::kWritten;
  if ((place & kPrivate) == 0 || !is_packed(to.packed, step.dst)) return Way::kWritten;
  return to.words[kPrivateOutput] != kNowhere ? Way::kWrittenByKernel : Way::kTaken;
}

bool Executor::run_copy_from(int c, const Step& step) {
  const int peer = step.peers[0];
  const Post& post = post_of(peer, c, turn_);
  const Way given = way(post, my_post(c, turn_), step);
  if ((post.packed & kTimed) != 0) tells_end_ = true;
  if (given != Way::kWritten) buffers_.unstage_output();
  const size_t first = step.pull && given != Way::kTaken ? 1 : 0;
  // Scratch is never private, and may itself be what the words hold.
  const bool shared = step.src == BufferId::kScratch;
  const uint64_t base = shared ? kNowhere : uint64_t{post.words[index(step.src)]};
  if (base != kNowhere && (base & kPrivate) != 0) return read_private(step, first, base & ~kPrivate);
  for (size_t i = first; i < step.dst_blocks.size(); ++i) {
    const Span to = buffers_.span(step.dst, step.dst_blocks[i]);
    if (to.bytes == 0) continue;
    const char* const from = peer_data(c, peer, step.src, step.remotes[0], i);
    copy(to.data, from, to.bytes, stores(buffers_.packed(step.dst)));
  }
  return true;
}

// Copies the blocks of a kCopyFrom from block `first` on. False: the peer has ended, or failed.
bool Executor::read_private(const Step& step, size_t first, uint64_t base) {
  const int peer = step.peers[0];
  const Remote& remote = step.remotes[0];
  const std::vector<uint64_t>& places = buffers_.layout(remote.table).spread;
  for (size_t i = first; i < step.dst_blocks.size();) {
    Span to = buffers_.span(step.dst, step.dst_blocks[i]);
    const uint64_t from = base + places[remote.blocks[i]];
    for (++i; i < step.dst_blocks.size(); ++i) {  // blocks that lie side by side on both ranks take one call
      const Span next = buffers_.span(step.dst, step.dst_blocks[i]);
      if (next.data != to.data + to.bytes || base + places[remote.blocks[i]] != from + to.bytes) break;
      to.bytes += next.bytes;
    }
    if (to.bytes > 0 && !read(peer, to.data, from, to.bytes)) return false;
  }
  return true;
}

// False: the peer has ended, or failed.
bool Executor::read(int peer, char* to, uint64_t from, uint64_t bytes) {
  const KernelRead::Outcome outcome = neighbourhood_.read(peer, to, from, bytes);
  if (outcome == KernelRead::Outcome::kRefused) throw unreadable(peer, bytes);
  return outcome == KernelRead::Outcome::kDone;
}

// False: a peer has ended, or failed.
bool Executor::run_copy_to(int c, const Step& step) {
  for (size_t i = 0; i < step.src_blocks.size(); ++i) {
    const Span from = buffers_.span(step.src, step.src_blocks[i]);
    if (from.bytes == 0) continue;
    for (size_t p = 0; p < step.peers.size(); ++p) {
      const Post& post = post_of(step.peers[p], c, turn_);
      switch (way(my_post(c, turn_), post, step)) {
        case Way::kTaken:
          break;
        case Way::kWrittenByKernel:
          if (!write_private(step, p, i, post.words[kPrivateOutput] & ~kPrivate)) return false;
          break;
        case Way::kWritten: {
          char* const to = peer_data(c, step.peers[p], step.dst, step.remotes[p], i);
          const bool staged = is_packed(post.packed, step.dst);
          const Neighbourhood::StoreSection section(neighbourhood_, lane_of_slot(slot_), &step.peers[p], 1);
          if (!section.open()) return false;
          staged ? one_way_.copy(to, from.data, from.bytes) : copy(to, from.data, from.bytes, stores(staged));
        }
      }
    }
  }
  return true;
}

// Copies block `i` of a kCopyTo to the output of peer `p`, which begins at `base`. False: the peer has ended, or
// failed.
bool Executor::write_private(const Step& step, size_t p, size_t i, uint64_t base) {
  const Span from = buffers_.span(step.src, step.src_blocks[i]);
  const Remote& remote = step.remotes[p];
  const uint64_t to = base + buffers_.layout(remote.table).spread[remote.blocks[i]];
  const KernelRead::Outcome outcome =
      neighbourhood_.write(step.peers[p], lane_of_slot(slot_), to, from.data, from.bytes);
  if (outcome == KernelRead::Outcome::kRefused) throw unwritable(step.peers[p], from.bytes);
  return outcome == KernelRead::Outcome::kDone;
}

void Executor::run_copy(const Step& step) {
  for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
    const Span from = buffers_.source(step.src, step.src_blocks[i]), to = buffers_.span(step.dst, step.dst_blocks[i]);
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
