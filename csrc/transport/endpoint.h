// One end of an ordered stream of bytes to one peer: all that the engine knows about a transport.
//
// Not thread-safe: an endpoint belongs to one stream of one communicator, and the thread that drives that stream
// drives it. Nothing here blocks. A new transport (RDMA, device memory) is a new subclass.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace ddl {

// Descriptors to poll. With each: whether to wait until it can be written, too.
using Polled = std::vector<std::pair<int, bool>>;

class Endpoint {
 public:
  // `write_in_place` copies parts up to this length.
  static constexpr size_t kCopiedPart = 4 << 10;
  static constexpr uint64_t kAllBytes = std::numeric_limits<uint64_t>::max();

  Endpoint() = default;
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;
  virtual ~Endpoint() = default;

  // --- moving bytes. All of these throw LostPeer. ---
  // Moves as many bytes as go without waiting. Returns their number; 0: none now.
  virtual size_t write(const iovec* parts, int n) = 0;
  virtual size_t read(const iovec* parts, int n) = 0;
  // As `write`, but the endpoint may read parts longer than kCopiedPart until `released` has passed them.
  virtual size_t write_in_place(const iovec* parts, int n) { return write(parts, n); }
  // How many of the bytes written so far, from the first on, are done with: their memory may change, and this rank
  // need not wait for them. kAllBytes: an endpoint that copies all.
  virtual uint64_t released() { return kAllBytes; }
  // Does what is due besides reading and writing. Returns whether anything moved.
  virtual bool progress() { return false; }

  // --- waiting ---
  // Whether a rank that waits has descriptors to poll. If not, the peer wakes it through shared memory.
  virtual bool polled() const = 0;
  // Appends the descriptors to poll. `reading`: this rank waits for bytes. `writing`: it has bytes to write.
  virtual void poll_fds(Polled* fds, bool reading, bool writing) const = 0;
  // Whether this end would notice that the peer closes its own.
  virtual bool open() const = 0;
  // Whether bytes are on their way, but nothing has come back from the peer's host for so long, not even an
  // acknowledgement.
  virtual bool silent(Nanoseconds) const { return false; }

  // --- the end ---
  // Does what is due. Returns whether the peer gets all that was written even if this side closes now.
  virtual bool finished() { return true; }
  // Forgets what it has not sent: it never touches that memory again.
  virtual void abandon() {}
};

}  // namespace ddl
