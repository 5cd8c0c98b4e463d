// A TCP connection whose bytes go in records, encrypted or with a checksum, as an endpoint.
//
// What was sealed counts as written when the kernel has all of it. Until then the next call of `write` brings the
// same bytes again, or as many others that nobody needs (PartsWriter::blank), and they are passed over. So all that
// the engine and the rails know of a TCP connection holds here.
#pragma once

#include <array>
#include <memory>

#include "transport/tcp/tcp_endpoint.h"
#include "wire/record_session.h"

namespace ddl {

class RecordEndpoint final : public TcpEndpoint {
 public:
  // `session`: on `fd`; if it encrypts, both ends have shaken hands.
  RecordEndpoint(int peer, UniqueFd fd, const BacklogLimits& limits, std::shared_ptr<RecordSession> session)
      : TcpEndpoint(peer, std::move(fd), limits), session_(std::move(session)) {}

  size_t write(const iovec* parts, int n) override;
  size_t read(const iovec* parts, int n) override;
  void poll_fds(Polled* fds, bool reading, bool writing) const override;

 private:
  bool seal(const iovec* parts, int n);

  const std::shared_ptr<RecordSession> session_;
  size_t sealed_ = 0;                                     // bytes in records that do not count as written yet
  std::array<char, RecordSession::kRecordBytes> record_;  // short parts, put together
};

}  // namespace ddl
