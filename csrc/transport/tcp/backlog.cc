#include "transport/tcp/backlog.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>

namespace ddl {

namespace {

constexpr Nanoseconds kPeriod = 10 * kMillisecond;  // a shorter one would measure bursts
constexpr Nanoseconds kLasts = 250 * kMillisecond;  // how long a rate is valid
constexpr int kFirst = 160 << 10, kMost = 4 << 20;

}  // namespace

Backlog::Backlog(int fd, const BacklogLimits& limits) : fd_(fd), limits_(limits) { limit(kFirst); }

void Backlog::full() {
  const Nanoseconds now = now_ns(), since = now - measured_;
  if (since < kPeriod) return;
  tcp_info info{};
  socklen_t length = sizeof info;
  ::getsockopt(fd_, IPPROTO_TCP, TCP_INFO, &info, &length);  // if it fails, nothing is known
  const uint64_t acknowledged = info.tcpi_bytes_acked - acknowledged_, busy = info.tcpi_busy_time - busy_;
  measured_ = now;
  acknowledged_ = info.tcpi_bytes_acked;
  busy_ = info.tcpi_busy_time;
  const bool idle = busy * 1000 < static_cast<uint64_t>(since) / 2;
  if (since > kLasts || idle) return;
  const double rate = static_cast<double>(acknowledged) * 1e9 / static_cast<double>(since);
  rate_ = rate_ == 0 ? rate : (rate_ + rate) / 2;
  limit(std::clamp(static_cast<int>(limits_.seconds * rate_), limits_.least, kMost));
}

double Backlog::rate() const { return now_ns() - measured_ < kLasts ? rate_ : 0; }

void Backlog::limit(int bytes) {
  if (std::abs(bytes - limit_) < limit_ / 4) return;
  if (::setsockopt(fd_, IPPROTO_TCP, TCP_NOTSENT_LOWAT, &bytes, sizeof bytes) == 0) limit_ = bytes;
}

}  // namespace ddl
