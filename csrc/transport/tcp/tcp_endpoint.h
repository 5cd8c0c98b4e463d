// A connected, authenticated TCP socket as an endpoint. record_endpoint.h sends in records.
#pragma once

#include "base/unique_fd.h"
#include "transport/measured_endpoint.h"
#include "transport/tcp/backlog.h"

namespace ddl {

class TcpEndpoint : public MeasuredEndpoint {
 public:
  // Takes `fd` over and makes it non-blocking, without Nagle's delay.
  TcpEndpoint(int peer, UniqueFd fd, const BacklogLimits& limits);

  size_t write(const iovec* parts, int n) override;
  size_t read(const iovec* parts, int n) override;
  bool polled() const override { return true; }
  void poll_fds(Polled* fds, bool, bool writing) const override { fds->emplace_back(fd_.get(), writing); }
  bool open() const override { return true; }
  double rate() const override { return backlog_.rate(); }
  size_t queued() const override;
  Acknowledgement acknowledgement() const override;
  bool silent(Nanoseconds limit) const override;

 protected:
  int peer() const { return peer_; }
  int fd() const { return fd_.get(); }
  // The kernel takes no more for now.
  void note_full() { backlog_.full(); }

 private:
  const int peer_;
  UniqueFd fd_;
  Backlog backlog_;
};

}  // namespace ddl
