// Runs one piece at a time: all channels of a plan, on one part of an operation's buffers.
//
// One executor per slot. It belongs to the driver of the lane. It never blocks: `progress` goes as far as it can, and
// says whether anything moved. It knows steps, blocks and links, but no algorithms.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/buffers.h"
#include "engine/links.h"
#include "engine/neighbourhood.h"
#include "engine/operation.h"

namespace ddl {

class Executor {
 public:
  Executor(int rank, int slot, const Neighbourhood& neighbourhood, Links* links, HandoverChoice* handovers);
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  bool idle() const { return operation_ == nullptr; }
  Operation* operation() const { return operation_; }

  // Begins the operation's next piece.
  void start(Operation* operation);
  // True if anything moved. When the piece has ended, `finished` is true: then call `retire`.
  bool progress();
  bool finished() const { return finished_; }
  void retire();
  // After a failure: forget everything under way.
  void abandon();

  // Whether the piece waits for data that comes from a GPU.
  bool awaits_stage() const {
    return operation_ != nullptr && !entered_ && operation_->stage != nullptr && !operation_->stage->arrived(piece_);
  }
  // The receive that has no message yet; null: the piece is none, or has one.
  const Step* unmatched() const;
  bool awaits_any() const {
    const Step* const receive = unmatched();
    return receive != nullptr && receive->from_any();
  }
  // The ranks that the piece waits for, and what to poll for them.
  std::vector<int> waiting_for() const;
  // The first rank that the piece waits for; -1: none. Allocates nothing.
  int first_awaited() const;
  void poll_fds(Polled* fds) const;
  // Whether it has a connection to the peer over which it would notice the peer's end.
  bool hears(int peer) const;

 private:
  struct ChannelState {
    size_t next = 0;      // step
    bool posted = false;  // its receive is with the link, as number `message`
    Link* link = nullptr;
    uint64_t message = 0;
  };
  struct Sending {  // the last message of this piece on a link, of one channel
    Link* link;
    uint64_t message;
    int channel;
    bool over() const { return link->sent(message); }
  };

  bool choose_source(const Step& step);
  bool progress_channel(int channel);
  bool sends_over(int channel) const;
  // Calls `visit` with each rank that the piece waits for, some more than once, until it returns true.
  template <typename Visit>
  void visit_awaited(Visit visit) const;
  bool run_message(int channel, const Step& step);
  bool previous_turn_read() const;
  void note_begin_of_timed(int channel, const Step& step);
  void note_end_of_timed();
  bool awaited(int channel, const Step& step);
  void check_post(int peer, const Post& post) const;
  void describe(Post* post) const;
  void notify(int channel, const Step& step);
  Post& my_post(int channel, uint64_t turn) const;
  Post& post_of(int peer, int channel, uint64_t turn) const;
  // Wakes the ranks that may sleep until a change that this rank has made since the last call.
  void wake_neighbours();
  bool run_reduce(int channel, const Step& step, const Step* copy_to);
  void reduce_blocks(int channel, const Step& step, const Step* copy_to);
  // How a block goes that its owner may write to a peer, and the peer may take itself (Step::pull).
  enum class Way { kWritten, kWrittenByKernel, kTaken };
  Way way(const Post& from, const Post& to, const Step& step) const;
  bool run_copy_from(int channel, const Step& step);
  bool read_private(const Step& step, size_t first, uint64_t base);
  bool read(int peer, char* to, uint64_t from, uint64_t bytes);
  bool run_copy_to(int channel, const Step& step);
  bool write_private(const Step& step, size_t peer, size_t block, uint64_t base);
  void run_copy(const Step& step);

  Stores stores(bool staged) const;
  char* peer_data(int channel, int peer, BufferId buffer, const Remote& remote, size_t i) const;
  Link* link_to(int channel, int peer);
  WireCodec codec() const;  // of the operation's messages
  // Where the codec keeps what it drops of a block. Null: nowhere.
  char* residual(BufferId buffer, uint32_t block) const;
  // Of a message of so many bytes in memory.
  SegmentHeader header(uint64_t bytes) const;
  bool ordered() const { return slot_ != kPointToPointSlot; }

  const int rank_, slot_;
  const Neighbourhood& neighbourhood_;
  Links* const links_;

  Operation* operation_ = nullptr;
  uint64_t piece_ = 0;
  uint64_t turn_ = 0;      // pieces this slot has begun
  uint64_t met_turn_ = 0;  // the last turn that this rank has seen all neighbours begin
  bool entered_ = false, finished_ = false;
  bool wake_due_ = false;
  bool entering_ = false;              // in the first look at the piece
  bool tells_end_ = false;             // posts when it has ended
  bool awaits_ends_ = false;           // has tickets
  std::array<Descriptor, 2> history_;  // of the last even and the last odd turn
  std::array<ChannelState, kMaxChannels> channels_;
  std::array<std::vector<Link*>, kMaxChannels> known_links_;  // by peer
  OneWayCopies one_way_;
  HandoverChoice* const handovers_;
  std::array<HandoverChoice::Ticket, 2> tickets_;  // of timed operations that ended in those turns
  PieceBuffers buffers_{&one_way_, handovers_, neighbourhood_};
  std::vector<Sending> sendings_;      // links that this piece has sent on
  std::vector<const void*> operands_;  // reused by every reduction
  std::vector<void*> targets_;
  std::vector<iovec> parts_;  // reused by every message
  std::vector<Landing> landings_;
};

}  // namespace ddl
