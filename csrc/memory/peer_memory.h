// The arena of another rank of this host, mapped here. Having mapped it is the proof that we share memory.
//
// The Unix socket over which the descriptor came stays open: when the peer's process ends, however it ends, the
// kernel hangs it up. Shared by all communicators of the process.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/unique_fd.h"

namespace ddl {

class PeerMemory {
 public:
  // Takes both descriptors over. Throws kResourceError, and kProtocolError unless `memory_fd` is an arena: of that
  // size, and sealed so that it stays of that size.
  PeerMemory(int memory_fd, size_t bytes, int socket_fd);
  ~PeerMemory();
  PeerMemory(const PeerMemory&) = delete;
  PeerMemory& operator=(const PeerMemory&) = delete;

  char* at(uint64_t offset) const { return base_ + offset; }
  // Whether what a peer has posted can be what it says: `bytes` at `offset`, so aligned.
  bool holds(uint64_t offset, size_t bytes, size_t alignment) const {
    return offset <= size_ && bytes <= size_ - offset && offset % alignment == 0;
  }
  size_t size() const { return size_; }
  bool alive() const;
  // Lets the socket go, when nobody will ask `alive` any more; the memory stays mapped.
  void close_socket() { socket_.reset(); }

 private:
  UniqueFd socket_;
  char* base_ = nullptr;
  size_t size_ = 0;
};

}  // namespace ddl
