// The memory of this process that the other ranks of the host can map: one sparse memfd, mapped once.
//
// It holds the buffers from `ddl.empty`, the engine's staging and scratch memory, and the boards on which ranks meet.
// Ranks exchange one descriptor; then a peer reaches all of these as base + offset. A memfd has no name: nothing
// stays behind when a process dies, and a container's limit for /dev/shm does not apply. A page costs nothing until
// it is touched. Large blocks give their pages back when freed. Thread-safe.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "memory/free_list.h"

namespace ddl {

// The owner can never change the size of its arena again, so that a peer can touch all of it: a process that touches
// a page beyond the end of a file dies by SIGBUS. Freed pages can still be given back (a hole in the file reads as
// zeros).
constexpr int kArenaSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

constexpr size_t kArenaRootBytes = 4096;

class Arena {
 public:
  // The arena of this process. The first call makes it, in the size set by `configure`. 0: that of physical memory,
  // but 256 GiB at least.
  static Arena& process();
  // Has an effect only before the first use. Returns whether it had.
  static bool configure(size_t bytes);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // The first bytes, kArenaRootBytes of them: by them others find what they look for. Zero at first.
  void* root() const { return base_; }
  // Memory that was never used before is zero. Throws kResourceError when full, kInvalidState in a forked child.
  void* allocate(size_t bytes, size_t alignment = 64);
  void free(void* pointer);

  bool contains(const void* pointer, size_t bytes) const {
    const auto p = reinterpret_cast<uintptr_t>(pointer), b = reinterpret_cast<uintptr_t>(base_);
    return p >= b && p - b <= size_ && bytes <= size_ - (p - b);
  }
  uint64_t offset(const void* pointer) const {
    return static_cast<uint64_t>(static_cast<const char*>(pointer) - base_);
  }
  int fd() const { return fd_.get(); }
  size_t size() const { return size_; }
  size_t used() const;

 private:
  explicit Arena(size_t bytes);

  UniqueFd fd_;
  char* base_ = nullptr;
  const size_t size_;
  const bool configured_;  // else its blocks take no more together than the memory that there is
  const int owner_pid_;

  mutable Mutex mutex_;
  FreeList parts_ DDL_GUARDED_BY(mutex_);
};

}  // namespace ddl
