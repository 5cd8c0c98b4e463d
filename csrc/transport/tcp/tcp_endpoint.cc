#include "transport/tcp/tcp_endpoint.h"

#include <fcntl.h>
#include <linux/sockios.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "base/error.h"

namespace ddl {

namespace {

// Times that the kernel has tried in vain: perhaps nobody hears it; and surely, as the pauses between them double, so
// that these take 6 seconds or more.
constexpr int kStuck = 2, kTried = 5;

// How often the kernel has sent the same again, or asked again whether there is room, without an answer. It also asks
// where it cannot even begin to send, as this host has lost its address or its cable: then nothing is on its way.
int tried_in_vain(const tcp_info& info) { return std::max(info.tcpi_retransmits, info.tcpi_probes); }

bool ask(int fd, tcp_info* info) {
  socklen_t length = sizeof *info;
  return ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, info, &length) == 0;
}

[[noreturn]] void throw_lost(int peer, const char* doing) {
  throw LostPeer(peer, text_of_errno(errno) + " while " + doing);
}

}  // namespace

TcpEndpoint::TcpEndpoint(int peer, UniqueFd fd, const BacklogLimits& limits)
    : peer_(peer), fd_(std::move(fd)), backlog_(fd_.get(), limits) {
  const int flags = ::fcntl(fd_.get(), F_GETFL, 0);
  if (flags < 0 || ::fcntl(fd_.get(), F_SETFL, flags | O_NONBLOCK) != 0) throw_errno("fcntl of a data connection");
  const int on = 1;
  if (::setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) != 0) throw_errno("setsockopt(TCP_NODELAY)");
}

size_t TcpEndpoint::write(const iovec* parts, int n) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = static_cast<size_t>(n);
  const ssize_t moved = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (moved >= 0) return static_cast<size_t>(moved);
  if (would_block()) {
    backlog_.full();
    return 0;
  }
  throw_lost(peer_, "sending");
}

size_t TcpEndpoint::read(const iovec* parts, int n) {
  const ssize_t moved = ::readv(fd_.get(), parts, n);
  if (moved > 0) return static_cast<size_t>(moved);
  if (moved == 0) throw LostPeer(peer_, "connection closed by the peer while receiving");
  if (would_block()) return 0;
  throw_lost(peer_, "receiving");
}

size_t TcpEndpoint::queued() const {
  int bytes = 0;
  ::ioctl(fd_.get(), SIOCOUTQ, &bytes);  // if it fails, nothing is known
  return static_cast<size_t>(bytes);
}

Acknowledgement TcpEndpoint::acknowledgement() const {
  tcp_info info{};
  if (!ask(fd_.get(), &info)) return Acknowledgement::kPending;
  if (tried_in_vain(info) >= kStuck) return Acknowledgement::kMissing;
  return info.tcpi_unacked == 0 ? Acknowledgement::kComplete : Acknowledgement::kPending;
}

bool TcpEndpoint::silent(Nanoseconds limit) const {
  tcp_info info{};
  if (!ask(fd_.get(), &info)) return false;
  // Not after an idle hour: the kernel has tried again and again since the last acknowledgement.
  return tried_in_vain(info) >= kTried && info.tcpi_last_ack_recv >= limit / kMillisecond;
}

}  // namespace ddl
