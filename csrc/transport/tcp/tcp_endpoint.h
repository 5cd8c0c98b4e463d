// A connected, authenticated TCP socket as an endpoint.
#pragma once

#include "base/unique_fd.h"
#include "transport/endpoint.h"

namespace ddl {

class TcpEndpoint final : public Endpoint {
 public:
  // Takes `fd` over and makes it non-blocking, without Nagle's delay.
  TcpEndpoint(int peer, UniqueFd fd);

  size_t write(const iovec* parts, int n) override;
  size_t read(const iovec* parts, int n) override;
  int poll_fd() const override { return fd_.get(); }

 private:
  const int peer_;
  UniqueFd fd_;
};

}  // namespace ddl
