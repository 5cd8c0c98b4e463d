// An encrypted TCP connection as an endpoint.
//
// What was encrypted counts as written when the kernel has all of it. Until then the next call of `write` brings the
// same bytes again, or as many others that nobody needs (PartsWriter::blank), and they are passed over. So all that
// the engine and the rails know of a TCP connection holds here.
#pragma once

#include <array>
#include <memory>

#include "tls/session.h"
#include "transport/tcp/tcp_endpoint.h"

namespace ddl {

class TlsEndpoint final : public TcpEndpoint {
 public:
  // `session`: on `fd`, and both ends have shaken hands.
  TlsEndpoint(int peer, UniqueFd fd, const BacklogLimits& limits, std::shared_ptr<TlsSession> session)
      : TcpEndpoint(peer, std::move(fd), limits), session_(std::move(session)) {}

  size_t write(const iovec* parts, int n) override;
  size_t read(const iovec* parts, int n) override;
  void poll_fds(Polled* fds, bool reading, bool writing) const override;

 private:
  bool seal(const iovec* parts, int n);

  const std::shared_ptr<TlsSession> session_;
  size_t sealed_ = 0;                                  // bytes that are encrypted, and do not count as written yet
  std::array<char, TlsSession::kRecordBytes> record_;  // short parts, put together
};

}  // namespace ddl
