#include "memory/peer_memory.h"

#include <linux/magic.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <string>

#include "base/error.h"
#include "memory/arena.h"

namespace ddl {

namespace {

// Throws unless every byte of the mapping can be touched, now and later. A peer's claim is no proof of that.
void check_arena(int fd, size_t bytes) {
  struct stat status{};
  if (::fstat(fd, &status) != 0) throw_errno("fstat of a peer's shared memory");
  if (bytes == 0 || status.st_size < 0 || static_cast<uint64_t>(status.st_size) != bytes) {
    throw Error(ErrorKind::kProtocolError, "the peer says that its shared memory has " + std::to_string(bytes) +
                                               " bytes, but it has " + std::to_string(status.st_size));
  }
  const int seals = ::fcntl(fd, F_GET_SEALS);
  struct statfs system{};
  const bool plain = ::fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;  // no huge pages, which can run out
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || !plain) {
    throw Error(ErrorKind::kProtocolError,
                "the peer's shared memory can be made shorter while it is in use (it is not a sealed memfd)");
  }
}

}  // namespace

PeerMemory::PeerMemory(int memory_fd, size_t bytes, int socket_fd) : socket_(socket_fd), size_(bytes) {
  UniqueFd memory(memory_fd);
  check_arena(memory.get(), bytes);
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (base == MAP_FAILED) {
    throw_errno("mmap of a peer's shared memory (" + std::to_string(bytes >> 20) + " MiB of address space)",
                "set DDL_SHM_SIZE to less, raise 'ulimit -v', or set DDL_SHM=0 to do without shared memory");
  }
  ::madvise(base, bytes, MADV_DONTDUMP);
  base_ = static_cast<char*>(base);
  ucred peer{};
  socklen_t length = sizeof peer;
  if (::getsockopt(socket_.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0) pid_ = peer.pid;
}

PeerMemory::~PeerMemory() { ::munmap(base_, size_); }

bool PeerMemory::alive() const {
  pollfd entry{socket_.get(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) <= 0 || (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0;
}

}  // namespace ddl
