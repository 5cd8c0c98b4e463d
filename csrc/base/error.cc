#include "base/error.h"

#include <array>
#include <cerrno>
#include <cstring>

namespace ddl {

const char* name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "InvalidArgument";
    case ErrorKind::kInvalidState:
      return "InvalidState";
    case ErrorKind::kWaitTimeout:
      return "WaitTimeout";
    case ErrorKind::kPeerLost:
      return "PeerLost";
    case ErrorKind::kCollectiveTimeout:
      return "CollectiveTimeout";
    case ErrorKind::kCollectiveMismatch:
      return "CollectiveMismatch";
    case ErrorKind::kProtocolError:
      return "ProtocolError";
    case ErrorKind::kAborted:
      return "Aborted";
    case ErrorKind::kResourceError:
      return "ResourceError";
    case ErrorKind::kInternalError:
      return "InternalError";
  }
  return "InternalError";
}

ErrorKind error_kind(const std::string& text) {
  for (int i = 0; i <= static_cast<int>(ErrorKind::kInternalError); ++i) {
    const auto kind = static_cast<ErrorKind>(i);
    if (text == name(kind)) return kind;
  }
  return ErrorKind::kInternalError;
}

bool would_block() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

std::string text_of_errno(int code) {
  std::array<char, 128> text{};
  return strerror_r(code, text.data(), text.size());
}

void throw_errno(const std::string& call, const std::string& remedy) {
  const int code = errno;
  std::string message = call + " failed: " + text_of_errno(code);
  message += " (errno " + std::to_string(code) + ")";
  if (!remedy.empty()) message += "; " + remedy;
  throw Error(ErrorKind::kResourceError, message);
}

}  // namespace ddl
