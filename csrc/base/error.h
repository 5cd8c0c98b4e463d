// The errors of the native core. Each kind is one class of ddl/errors.py, under the same name; the binding
// translates. A message says who, what, where, why, and what to do: it may be all that an operator sees.
#pragma once

#include <stdexcept>
#include <string>

namespace ddl {

enum class ErrorKind {
  kInvalidArgument,
  kInvalidState,
  kWaitTimeout,
  kPeerLost,
  kCollectiveTimeout,
  kCollectiveMismatch,
  kProtocolError,
  kAborted,
  kResourceError,
  kInternalError,
};

// The name of the Python class, e.g. "PeerLost".
const char* name(ErrorKind kind);
// The kind of that name; kInternalError if there is none.
ErrorKind error_kind(const std::string& name);

class Error : public std::runtime_error {
 public:
  // `reason`: the message without who failed in which operation, for those who know the operation by another name.
  Error(ErrorKind kind, const std::string& message, const std::string& reason = "")
      : std::runtime_error(message), kind_(kind), reason_(reason) {}
  ErrorKind kind() const { return kind_; }
  const std::string& reason() const { return reason_; }

 private:
  ErrorKind kind_;
  std::string reason_;
};

// This process has lost its connection to a peer. `reason` completes "lost rank 3: ".
class LostPeer : public std::runtime_error {
 public:
  LostPeer(int peer, const std::string& reason) : std::runtime_error(reason), peer_(peer) {}
  int peer() const { return peer_; }

 private:
  int peer_;
};

// Of errno, after a call on a descriptor that does not block: whether the same call may work later.
bool would_block();
// What `code`, of errno, means.
std::string text_of_errno(int code);
// Throws kResourceError with the call, the text of errno, and what to do about it.
[[noreturn]] void throw_errno(const std::string& call, const std::string& remedy = "");

}  // namespace ddl
