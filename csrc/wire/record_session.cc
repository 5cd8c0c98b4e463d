#include "wire/record_session.h"

#include <sys/socket.h>

#include <cerrno>

#include "base/error.h"

namespace ddl {

RecordSession::Moved RecordSession::send() {
  while (sealed() > 0) {
    const ssize_t moved = ::send(fd_, out_.data() + sent_, sealed(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (moved < 0 && would_block()) return Moved::kNone;
    if (moved < 0) return end_by(errno);
    sent_ += static_cast<size_t>(moved);
  }
  out_.clear();
  sent_ = 0;
  return Moved::kSome;
}

RecordSession::Moved RecordSession::end(const std::string& reason) {
  if (reason_.empty()) reason_ = reason;
  return Moved::kEnded;
}

RecordSession::Moved RecordSession::end_by(int error) {
  if (reason_.empty()) error_ = error;
  return end(text_of_errno(error));
}

RecordSession::Moved RecordSession::end_by_closing() {
  if (reason_.empty()) closed_ = true;
  return end("connection closed by the peer");
}

}  // namespace ddl
