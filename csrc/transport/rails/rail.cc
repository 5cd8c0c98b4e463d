#include "transport/rails/rail.h"

#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <string>

#include "base/error.h"

namespace ddl {

namespace {

constexpr size_t kMaxParts = 64;  // iovecs given to the transport at once
constexpr int kStuck = 2;         // times that the kernel has sent again what was not acknowledged
const char zeros[64 << 10] = {};  // sent where what was meant to be sent is not wanted any more

}  // namespace

void Rail::end() {
  stop_sending();
  endpoint_.reset();
  suspect_ = false;
}

void Rail::stop_sending() {
  mute_ = true;
  parts_.clear();
  next_part_ = 0;
}

void Rail::begin(uint64_t frame, const FrameHeader& header, const std::vector<iovec>& parts) {
  frame_ = frame;
  encode(header, &out_header_);
  parts_.assign(1, {out_header_.data(), kFrameHeaderBytes});
  parts_.insert(parts_.end(), parts.begin(), parts.end());
  next_part_ = 0;
}

size_t Rail::write() {
  size_t total = 0;
  while (sending()) {
    const size_t n = std::min(kMaxParts, parts_.size() - next_part_);
    size_t bytes = endpoint_->write(parts_.data() + next_part_, static_cast<int>(n));
    if (bytes == 0) break;
    total += bytes;
    while (bytes > 0) {
      iovec& part = parts_[next_part_];
      const size_t step = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      bytes -= step;
      if (part.iov_len == 0) ++next_part_;
    }
  }
  return total;
}

void Rail::blank() {
  size_t bytes = 0, keep = next_part_ == 0 ? 1 : 0;  // the header is ours
  for (size_t i = next_part_ + keep; i < parts_.size(); ++i) bytes += parts_[i].iov_len;
  parts_.resize(next_part_ + keep);
  for (size_t step = 0; bytes > 0; bytes -= step) {
    step = std::min(bytes, sizeof zeros);
    parts_.push_back({const_cast<char*>(zeros), step});
  }
}

size_t Rail::queued() const {
  int bytes = 0;
  ::ioctl(fd(), SIOCOUTQ, &bytes);  // if it fails, nothing is known
  return static_cast<size_t>(bytes);
}

bool Rail::look() {
  if (has_frame()) return true;
  iovec rest{in_header_.data() + header_bytes_, kFrameHeaderBytes - header_bytes_};
  header_bytes_ += endpoint_->read(&rest, 1);
  if (!has_frame()) return false;
  in_done_ = 0;
  fresh_ = true;
  if (!decode(in_header_, &in_)) {
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
  tcp_info info{};
  socklen_t length = sizeof info;
  if (::getsockopt(fd(), IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return suspect_;
  if (info.tcpi_retransmits >= kStuck) {
    suspect_ = true;
  } else if (info.tcpi_unacked == 0) {
    suspect_ = false;  // all that was sent has come after all
  }
  return suspect_;
}

}  // namespace ddl
