// One connection of several that carry a stream (rails_endpoint.h): the frame that it is sending, the frame that is
// coming, how fast it is, and whether the other side still hears it.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/endpoint.h"
#include "wire/frame.h"

namespace ddl {

class Rail {
 public:
  explicit Rail(std::unique_ptr<Endpoint> endpoint) : endpoint_(std::move(endpoint)) {}

  // Reading throws LostPeer at the end of what the other side has sent, and `end` is due; writing throws it as soon
  // as that side takes no more, and `stop_sending` is due: what it has sent before may still be here.
  bool ended() const { return endpoint_ == nullptr; }
  void end();
  int fd() const { return endpoint_->poll_fd(); }

  // --- out ---
  // Whether a frame may be given to it: it is there, and takes what it is given.
  bool usable() const { return !ended() && !mute_ && !suspect_; }
  bool mute() const { return mute_; }
  void stop_sending();
  bool sending() const { return next_part_ < parts_.size(); }
  // Begins a frame: number `frame` of the stream, or one without bytes.
  void begin(uint64_t frame, const FrameHeader& header, const std::vector<iovec>& parts);
  uint64_t frame() const { return frame_; }
  // Writes what goes; returns how many bytes went.
  size_t write();
  // The rest of the frame is of no use to anybody: sends zeros, so that its memory may be changed.
  void blank();
  // Bytes that the other side's kernel does not have yet.
  size_t queued() const;
  // As that of endpoints.
  double rate() const { return endpoint_->rate(); }

  // --- in ---
  // Reads a frame's header; true if it is there. `position` is that of the frame's next byte in the stream.
  bool look();
  bool has_frame() const { return header_bytes_ == kFrameHeaderBytes; }
  // True once for each header.
  bool fresh() { return std::exchange(fresh_, false); }
  const FrameHeader& coming() const { return in_; }
  uint64_t position() const { return in_.offset + in_done_; }
  uint32_t left() const { return in_.length - in_done_; }
  size_t read(const iovec* parts, int n);
  // Drops up to so many bytes of the frame; returns how many.
  size_t drop(uint64_t bytes);
  // Reads what is there of the frame into a copy.
  size_t copy();
  std::vector<char>& copied() { return copy_; }
  bool copying() const { return !copy_.empty(); }
  void finish() { header_bytes_ = 0; }

  // --- health ---
  // Asks the kernel whether the other side acknowledges; returns whether it does not.
  bool look_after();
  bool suspect() const { return suspect_; }

 private:
  std::unique_ptr<Endpoint> endpoint_;
  bool suspect_ = false;
  bool mute_ = false;

  FrameBytes out_header_{};
  std::vector<iovec> parts_;
  size_t next_part_ = 0;
  uint64_t frame_ = 0;

  FrameBytes in_header_{};
  size_t header_bytes_ = 0;
  FrameHeader in_;
  bool fresh_ = false;
  uint32_t in_done_ = 0;
  std::vector<char> copy_;  // of the coming frame's beginning, if it is set aside
};

}  // namespace ddl
