// One end of an ordered stream of bytes to one peer: the whole of what the engine knows about a transport.
//
// Not thread-safe: an endpoint belongs to one stream of one communicator, and whoever drives that stream drives it.
// Nothing here blocks. A new transport (RDMA, device memory) is a new subclass.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace ddl {

// Descriptors to poll, each with whether to wait for room as well.
using Polled = std::vector<std::pair<int, bool>>;

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

  // Bytes per second that it has carried lately; 0: not known.
  virtual double rate() const { return 0; }
};

// A stream over several endpoints at once, any of which may be slow, or end, or come later.
class Rails : public Endpoint {
 public:
  virtual void add(std::unique_ptr<Endpoint> rail) = 0;
  // As `write`, but long parts are not copied: they are read until `settled` has passed the bytes `accepted` by now.
  virtual size_t write_kept(const iovec* parts, int n) = 0;
  virtual uint64_t accepted() const = 0;
  // Before so many bytes all is done that somebody must wait for: the kernel has the copies, the peer the rest.
  virtual uint64_t settled() = 0;
  // Does what is due besides reading and writing; returns whether anything moved. Throws LostPeer.
  virtual bool progress() = 0;
  // `reading`: somebody waits for what comes, and not only for room and news.
  virtual void poll_fds(Polled* fds, bool reading) const = 0;
  // Whether a rail is left over which something may still come.
  virtual bool open() const = 0;
  // Does what is due; whether the peer's kernel has all that was written. Only then may this side close: what it has
  // not read makes the kernel drop what it has not sent. Throws LostPeer.
  virtual bool finished() = 0;
  // Never touches the memory of what was written again.
  virtual void abandon() = 0;
};

}  // namespace ddl
