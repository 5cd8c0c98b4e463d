// A stream of bytes over several connections at once, one for each rail: network interfaces that join the same hosts.
//
// What is written is cut into frames (wire/frame.h). A frame goes to whichever rail has room, so a slow rail gets
// less and a dead one none. The receiver takes frames in the order of the stream; one that comes early waits in its
// rail's socket, where the kernel keeps it, unless that lasts: what it waits for may have been lost, and come again
// behind it. Then it is set aside. The receiver says how far it is (in every frame, or in one of its own),
// and until then a frame is kept: if its rail ends, or falls silent, it is sent again over another.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/growing_ring.h"
#include "transport/rails/rail.h"

namespace ddl {

class RailsEndpoint final : public Rails {
 public:
  // `expected`: how many rails there will be; one that is still coming may bring what others did not.
  RailsEndpoint(int peer, size_t expected) : peer_(peer), expected_(expected) {}

  void add(std::unique_ptr<Endpoint> rail) override { rails_.push_back(std::make_unique<Rail>(std::move(rail))); }
  size_t write(const iovec* parts, int n) override { return accept(parts, n, false); }
  size_t write_kept(const iovec* parts, int n) override { return accept(parts, n, true); }
  size_t read(const iovec* parts, int n) override;
  int poll_fd() const override;
  uint64_t accepted() const override { return accepted_; }
  uint64_t settled() override;
  bool progress() override;
  void poll_fds(Polled* fds, bool reading) const override;
  bool open() const override;
  bool finished() override;
  void abandon() override;

 private:
  struct Frame {
    uint64_t offset = 0;
    uint32_t length = 0;
    bool copied = false;       // all of it: nobody else's memory is read
    bool left = false;         // the kernel has taken it
    bool answer = false;       // the peer shall say that it has it
    const Rail* on = nullptr;  // that it was given to
    std::vector<iovec> parts;
    std::vector<char> copy;
  };

  size_t accept(const iovec* parts, int n, bool kept);
  void fill(Frame* frame, const iovec* parts, size_t* part, size_t* in_part, size_t bytes, bool kept);
  bool flush();
  bool worth(const Rail& rail) const;
  bool feed(Rail* rail);
  bool take(uint64_t* frame);
  void heard(uint64_t received);
  void answer(const Rail* rail);
  bool deliverable(Rail* rail);
  bool set_aside(Rail* rail);
  size_t take_aside(const iovec* parts, int n, size_t skip);
  size_t deliver(Rail* rail, const iovec* parts, int n, size_t skip);
  void look_after();
  void take_back(const Rail* rail);
  void lose(Rail* rail, const LostPeer& why);
  bool all_ended() const;

  const int peer_;
  const size_t expected_;
  std::vector<std::unique_ptr<Rail>> rails_;
  std::string reason_;  // why the last rail ended

  Ring<Frame> frames_;           // that the peer is not known to have, the oldest first
  uint64_t next_ = 0;            // the first one that was given to no rail yet
  std::vector<uint64_t> again_;  // those that were lost with their rails
  uint64_t accepted_ = 0;        // bytes
  uint64_t unsettled_ = 0;       // the first frame of which `settled` does not know yet
  size_t copies_ = 0;            // bytes in frames that are copies
  size_t frame_bytes_ = 64 << 10;
  Nanoseconds looked_after_ = 0;
  uint64_t waited_for_ = 0;    // a frame of which nothing has been heard
  Nanoseconds ask_again_ = 0;  // when to send it once more
  Nanoseconds patience_ = 0;

  uint64_t received_ = 0;  // bytes that were read
  uint64_t answered_ = 0;  // how far the peer knows of them
  bool answer_due_ = false;
  Nanoseconds stalled_ = 0;  // since when nothing has come that could be read
  bool setting_aside_ = false;
  std::map<uint64_t, std::vector<char>> aside_;  // frames that came early, by offset
  const Rail* answer_on_ = nullptr;              // the rail that brought the last bytes: that one works
};

}  // namespace ddl
