// A connected, authenticated TCP socket as an endpoint.
#pragma once

#include "base/unique_fd.h"
#include "transport/endpoint.h"
#include "transport/tcp/backlog.h"

namespace ddl {

class TcpEndpoint final : public Endpoint {
 public:
  // Takes `fd` over and makes it non-blocking, without Nagle's delay.
  TcpEndpoint(int peer, UniqueFd fd, const BacklogLimits& limits);

  size_t write(const iovec* parts, int n) override;
  size_t read(const iovec* parts, int n) override;
  int poll_fd() const override { return fd_.get(); }
  double rate() const override { return backlog_.rate(); }

 private:
  const int peer_;
  UniqueFd fd_;
  Backlog backlog_;
};

}  // namespace ddl
