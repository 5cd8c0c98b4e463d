// One end of an ordered stream of bytes to one peer: the whole of what the engine knows about a transport.
//
// Not thread-safe: an endpoint belongs to one stream of one communicator, and whoever drives that stream drives it.
// Nothing here blocks. A new transport (RDMA, device memory) is a new subclass.
#pragma once

#include <sys/uio.h>

#include <cstddef>

namespace ddl {

class Endpoint {
 public:
  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint() = default;

  // Moves as many bytes as go without waiting and returns their number (0: none now). Throws LostPeer.
  virtual size_t write(const iovec* parts, int n) = 0;
  virtual size_t read(const iovec* parts, int n) = 0;

  // What to poll while nothing moves; -1: this transport is woken through shared memory instead.
  virtual int poll_fd() const = 0;
};

}  // namespace ddl
