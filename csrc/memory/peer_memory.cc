#include "memory/peer_memory.h"

#include <poll.h>
#include <sys/mman.h>

#include "base/error.h"

namespace ddl {

PeerMemory::PeerMemory(int memory_fd, size_t bytes, int socket_fd) : socket_(socket_fd), size_(bytes) {
  UniqueFd memory(memory_fd);
  void* base = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory.get(), 0);
  if (base == MAP_FAILED) {
    throw_errno("mmap of a peer's shared memory (" + std::to_string(bytes >> 20) + " MiB of address space)",
                "set DDL_SHM_SIZE to less, raise 'ulimit -v', or set DDL_SHM=0 to do without shared memory");
  }
  ::madvise(base, bytes, MADV_DONTDUMP);
  base_ = static_cast<char*>(base);
}

PeerMemory::~PeerMemory() { ::munmap(base_, size_); }

bool PeerMemory::alive() const {
  pollfd entry{socket_.get(), POLLRDHUP, 0};
  return ::poll(&entry, 1, 0) <= 0 || (entry.revents & (POLLHUP | POLLRDHUP | POLLERR)) == 0;
}

}  // namespace ddl
