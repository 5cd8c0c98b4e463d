// One of several connections that carry a stream (rails_endpoint.h): the frame that it sends, the frame that comes,
// how fast it is, and whether the other side still receives.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "transport/framing.h"
#include "transport/measured_endpoint.h"
#include "wire/frame.h"

namespace ddl {

class Rail {
 public:
  Rail(int number, std::unique_ptr<MeasuredEndpoint> endpoint) : number_(number), endpoint_(std::move(endpoint)) {}
  int number() const { return number_; }

  // Reading throws LostPeer at the end of what the other side has sent: then call `end`. Writing throws it as soon as
  // that side takes no more: then call `stop_sending`, because bytes that it sent before may still be here.
  bool ended() const { return endpoint_ == nullptr; }
  void end(const std::string& why);
  void poll_fds(Polled* fds, bool writing) const { endpoint_->poll_fds(fds, true, writing); }

  // --- out ---
  // Whether a frame may be given to it.
  bool usable() const { return !ended() && !mute_ && !suspect_; }
  bool mute() const { return mute_; }
  void stop_sending(const std::string& why);
  bool sending() const { return !out_.done(); }
  // Begins a frame: number `frame` of the stream, or one without bytes.
  void begin(uint64_t frame, const FrameHeader& header, const std::vector<iovec>& parts);
  uint64_t frame() const { return frame_; }
  // Writes what goes without waiting. Returns how many bytes went.
  size_t write() { return out_.write(endpoint_.get()); }
  // Nobody needs the rest of the frame: sends zeros instead, so that its memory may change.
  void blank() { out_.blank(); }
  // Bytes that the other side's kernel does not have yet.
  size_t queued() const { return endpoint_->queued(); }
  double rate() const { return endpoint_->rate(); }

  // --- in ---
  // Reads a frame's header. Returns whether it is complete. `position`: of the frame's next byte in the stream.
  bool look();
  bool has_frame() const { return header_.complete(); }
  // True at the first call for each header.
  bool fresh() { return std::exchange(fresh_, false); }
  const FrameHeader& coming() const { return in_; }
  uint64_t position() const { return in_.offset + in_done_; }
  uint32_t remaining() const { return in_.length - in_done_; }
  size_t read(const iovec* parts, int n);
  // Reads up to so many bytes of the frame and drops them. Returns how many.
  size_t drop(uint64_t bytes);
  // Reads what has come of the frame into a copy.
  size_t copy();
  std::vector<char>& copied() { return copy_; }
  bool copying() const { return !copy_.empty(); }
  void finish() { header_.restart(); }

  // --- health ---
  // Asks whether the other side acknowledges. Returns whether this rail is suspect.
  bool look_after();
  bool suspect() const { return suspect_; }
  // Whether nothing gets through any more. See Endpoint::silent.
  bool silent(Nanoseconds limit) const { return ended() || mute_ || endpoint_->silent(limit); }
  // Whether it has begun or ceased to work since the last call, for good: a peer that leaves ends all of its rails,
  // one after the other.
  bool changed(Nanoseconds now);
  bool works() const { return works_; }
  // Why the connection has ended; empty: it has not, it may be silent.
  const std::string& why() const { return why_; }

 private:
  static constexpr Nanoseconds kEndIsCertain = 500 * kMillisecond;

  const int number_;
  std::unique_ptr<MeasuredEndpoint> endpoint_;
  bool suspect_ = false;
  bool mute_ = false;
  std::string why_;
  bool works_ = true;          // as `changed` saw it last
  Nanoseconds mute_seen_ = 0;  // when `changed` first saw that it is mute

  FramedWriter<FrameHeader> out_;
  uint64_t frame_ = 0;

  HeaderReader<FrameHeader> header_;
  FrameHeader in_;
  bool fresh_ = false;
  uint32_t in_done_ = 0;
  std::vector<char> copy_;  // of the frame that comes, if it is set aside
};

}  // namespace ddl
