// A stream of bytes over several connections at once, one for each rail: network interfaces that join the same hosts.
//
// What is written is cut into frames (wire/frame.h). A frame goes to a rail that has room: a slow rail gets fewer, a
// dead one none. The receiver takes frames in the order of the stream. A frame that comes early stays in its rail's
// socket. If that lasts, the frame before it may be lost, and may come again behind it: then the early frame is set
// aside. Every frame says how much its sender has received. Until the peer has a frame, this side keeps it: if its
// rail ends, or falls silent, the frame goes again over another rail.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/growing_ring.h"
#include "transport/factory.h"
#include "transport/rails/early_frames.h"
#include "transport/rails/rail.h"

namespace ddl {

class RailsEndpoint final : public Rails {
 public:
  // `expected`: how many rails there will be. One that is still to come may bring what the others lost.
  RailsEndpoint(int peer, size_t expected, RailNews tell)
      : peer_(peer), expected_(expected), tell_(std::move(tell)) {}

  void add(int number, std::unique_ptr<MeasuredEndpoint> rail) override {
    rails_.push_back(std::make_unique<Rail>(number, std::move(rail)));
  }
  size_t write(const iovec* parts, int n) override { return accept(parts, n, false); }
  size_t write_in_place(const iovec* parts, int n) override { return accept(parts, n, true); }
  size_t read(const iovec* parts, int n) override;
  // Of copied bytes: the kernel has them. Of the others: the peer has them.
  uint64_t released() override;
  bool progress() override;
  bool polled() const override { return true; }
  // `writing` has no effect: this endpoint holds what is to be written.
  void poll_fds(Polled* fds, bool reading, bool writing) const override;
  bool open() const override;
  bool silent(Nanoseconds limit) const override;
  // Whether the peer's kernel has all. If this side closes while it has unread bytes, its kernel drops what it has
  // not sent.
  bool finished() override;
  void abandon() override;

 private:
  struct Frame {
    uint64_t offset = 0;
    uint32_t length = 0;
    bool copied = false;       // all of it, so that no other memory is read
    bool taken = false;        // the kernel has all of it
    bool answer = false;       // the peer is to say that it has it
    const Rail* on = nullptr;  // the rail that it was given to
    std::vector<iovec> parts;
    std::vector<char> copy;
  };

  size_t accept(const iovec* parts, int n, bool in_place);
  void fill(Frame* frame, const iovec* parts, size_t* part, size_t* in_part, size_t bytes, bool in_place);
  bool flush();
  bool worth(const Rail& rail) const;
  bool feed(Rail* rail);
  bool take(uint64_t* frame);
  void heard(uint64_t received);
  void answer(const Rail* rail);
  bool deliverable(Rail* rail);
  bool set_aside(Rail* rail);
  size_t deliver(Rail* rail, const iovec* parts, int n, size_t skip);
  void look_after();
  void take_back(const Rail* rail);
  void lose(Rail* rail, const LostPeer& why);
  bool all_ended() const;

  const int peer_;
  const size_t expected_;
  const RailNews tell_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::string reason_;  // why the last rail ended

  Ring<Frame> frames_;           // those that the peer may not have yet, the oldest first
  uint64_t next_ = 0;            // the first frame that was given to no rail yet
  std::vector<uint64_t> again_;  // frames that were lost with their rails
  uint64_t accepted_ = 0;        // bytes that `write` has taken
  uint64_t unreleased_ = 0;      // the first frame that is not released
  size_t copies_ = 0;            // bytes in frames that are copies
  size_t frame_bytes_ = 64 << 10;
  Nanoseconds looked_after_ = 0;
  uint64_t waited_for_ = 0;    // a frame for which no answer has come
  Nanoseconds ask_again_ = 0;  // when to send it once more
  Nanoseconds patience_ = 0;

  uint64_t received_ = 0;  // bytes that `read` has given
  uint64_t answered_ = 0;  // how many of them the peer knows of
  bool answer_due_ = false;
  Nanoseconds stalled_ = 0;  // since when nothing could be read
  bool setting_aside_ = false;
  EarlyFrames early_;
  const Rail* answer_on_ = nullptr;  // the rail that brought the last bytes: it works
};

}  // namespace ddl
