#include "tls/relay.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstddef>

#include "base/clock.h"
#include "base/error.h"
#include "tls/session.h"

namespace ddl {

namespace {

constexpr size_t kAtOnce = 64 << 10;  // bytes
// How long the other end may take nothing, when nobody is left here who would notice.
constexpr Nanoseconds kParting = 5 * kSecond;

class Relay {
 public:
  Relay(TlsSession* session, int encrypted, int plain) : session_(session), encrypted_(encrypted), plain_(plain) {}

  std::string run() {
    Nanoseconds moved = now_ns();
    while (true) {
      const bool came = inward(), went = outward(), some = came || went;
      if (!ended_.empty() && done_ == have_) return ended_;
      if (plain_closed_ && next_ == filled_ && session_->sealed() == 0) return "";
      const Nanoseconds now = now_ns();
      if (some) moved = now;
      if ((plain_closed_ || left_) && now - moved > kParting) return "";
      if (!some) wait();
    }
  }

 private:
  // What has come goes to the plain socket. Returns whether anything moved.
  bool inward() {
    bool some = false;
    if (done_ == have_ && ended_.empty()) {
      done_ = have_ = 0;
      switch (session_->read(in_.data(), in_.size(), &have_)) {
        case TlsSession::Moved::kEnded:
          ended_ = session_->reason();
          break;
        case TlsSession::Moved::kSome:
          some = true;
          break;
        case TlsSession::Moved::kNone:
          break;
      }
    }
    if (done_ == have_) return some;
    const ssize_t went = ::send(plain_, in_.data() + done_, have_ - done_, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (went > 0) done_ += static_cast<size_t>(went);
    if (went < 0 && !would_block()) done_ = have_;  // nobody reads it any more
    return some || went > 0;
  }

  // What was written to the plain socket goes out.
  bool outward() {
    if (!ended_.empty()) return false;
    bool some = false;
    if (next_ == filled_ && session_->sealed() == 0 && !plain_closed_) {
      const ssize_t got = ::recv(plain_, out_.data(), out_.size(), MSG_DONTWAIT);
      if (got == 0 || (got < 0 && !would_block())) plain_closed_ = true;
      next_ = 0;
      filled_ = got > 0 ? static_cast<size_t>(got) : 0;
      some = got > 0;
    }
    while (next_ < filled_) {
      size_t sealed = 0;
      if (session_->seal(out_.data() + next_, filled_ - next_, &sealed) != TlsSession::Moved::kSome) return end();
      next_ += sealed;
    }
    const size_t before = session_->sealed();
    if (session_->send() == TlsSession::Moved::kEnded) return end();
    return some || session_->sealed() < before;
  }

  bool end() {
    ended_ = session_->reason();
    next_ = filled_ = 0;
    return true;
  }

  void wait() {
    std::array<pollfd, 2> waited{{{encrypted_, 0, 0}, {plain_, 0, 0}}};
    const bool open = ended_.empty(), full = session_->sealed() > 0;
    if (open && done_ == have_) waited[0].events |= POLLIN;
    if (open && full) waited[0].events |= POLLOUT;
    if (done_ < have_) waited[1].events |= POLLOUT;
    if (open && !full) waited[1].events |= POLLIN;
    // Of a socket that is not asked for anything, poll would tell at once, again and again, that it was closed.
    if (waited[0].events == 0) waited[0].fd = -1;
    if (plain_closed_ || (left_ && full)) waited[1].fd = -1;
    if (::poll(waited.data(), waited.size(), 1000) > 0) left_ |= (waited[1].revents & POLLHUP) != 0;
  }

  TlsSession* const session_;
  const int encrypted_, plain_;
  std::array<char, kAtOnce> in_, out_;
  size_t have_ = 0, done_ = 0;    // of in_: what it holds, and how much of that has gone on
  size_t filled_ = 0, next_ = 0;  // of out_
  bool left_ = false;          // the other end of the plain socket is closed; what it has written may still be here
  bool plain_closed_ = false;  // and nothing is
  std::string ended_;
};

}  // namespace

std::string relay(TlsSession* session, int encrypted, int plain) { return Relay(session, encrypted, plain).run(); }

}  // namespace ddl
