#include "transport/rails/rail.h"

#include <array>

#include "base/error.h"

namespace ddl {

void Rail::end(const std::string& why) {
  stop_sending(why);
  endpoint_.reset();
  suspect_ = false;
}

void Rail::stop_sending(const std::string& why) {
  if (why_.empty()) why_ = why;
  mute_ = true;
  out_.clear();
}

void Rail::begin(uint64_t frame, const FrameHeader& header, const std::vector<iovec>& parts) {
  frame_ = frame;
  out_.begin(header);
  for (const iovec& part : parts) out_.append(part.iov_base, part.iov_len);
}

bool Rail::look() {
  if (has_frame()) return true;
  const iovec rest = header_.rest();
  header_.take(endpoint_->read(&rest, 1));
  if (!has_frame()) return false;
  in_done_ = 0;
  fresh_ = true;
  if (!header_.parse(&in_)) {
    throw Error(ErrorKind::kProtocolError,
                "what came over one of several rails is no frame; do all ranks use the same version of DDL?");
  }
  return true;
}

size_t Rail::read(const iovec* parts, int n) {
  const size_t bytes = endpoint_->read(parts, n);
  in_done_ += static_cast<uint32_t>(bytes);
  return bytes;
}

size_t Rail::drop(uint64_t bytes) {
  static thread_local std::array<char, 64 << 10> nowhere;
  const iovec part{nowhere.data(), std::min<uint64_t>(bytes, nowhere.size())};
  return read(&part, 1);
}

size_t Rail::copy() {
  const size_t before = copy_.size();
  copy_.resize(in_.length);
  const iovec rest{copy_.data() + before, in_.length - before};
  const size_t bytes = read(&rest, 1);
  copy_.resize(before + bytes);
  return bytes;
}

bool Rail::look_after() {
  switch (endpoint_->acknowledgement()) {
    case Acknowledgement::kMissing:
      suspect_ = true;
      break;
    case Acknowledgement::kComplete:
      suspect_ = false;
      break;
    case Acknowledgement::kPending:
      break;
  }
  return suspect_;
}

bool Rail::changed(Nanoseconds now) {
  if (mute_ && mute_seen_ == 0) mute_seen_ = now;
  const bool works = mute_ ? works_ && now - mute_seen_ < kEndIsCertain : !suspect_;
  return std::exchange(works_, works) != works;
}

}  // namespace ddl
