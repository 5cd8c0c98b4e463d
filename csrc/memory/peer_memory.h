// The arena of another rank of this host, mapped here. If it can be mapped, the two ranks do share memory.
//
// The Unix socket that brought the descriptor stays open: when the peer's process ends, for any reason, the kernel
// closes the other end. Shared by all communicators of the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"

namespace ddl {

class PeerMemory {
 public:
  // Takes both descriptors over. Throws kResourceError. Throws kProtocolError if `memory_fd` is no arena: not of that
  // size, or not sealed in that size.
  PeerMemory(int memory_fd, size_t bytes, int socket_fd);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  char* at(uint64_t offset) const { return base_ + offset; }
  // Whether `bytes` at `offset`, which a peer has posted, lie in its memory, and are aligned like this.
  bool holds(uint64_t offset, size_t bytes, size_t alignment) const {
    return offset <= size_ && bytes <= size_ - offset && offset % alignment == 0;
  }
  size_t size() const { return size_; }
  // The peer's process as this one sees it; 0: in a container from which it cannot be seen.
  int pid() const { return pid_; }
  bool alive() const;
  // Whether `alive` can see an end.
  bool watched() const { return socket_.get() >= 0; }
  // Closes the socket: `alive` cannot see an end any more. The memory stays mapped.
  void close_socket() { socket_.reset(); }

 private:
  UniqueFd socket_;
  char* base_ = nullptr;
  size_t size_ = 0;
  int pid_ = 0;
};

}  // namespace ddl
