// The memory of this process that the other ranks of the host can map: one sparse memfd, mapped once.
//
// Buffers from `ddl.empty`, the engine's staging and scratch, and the boards on which ranks meet all live here, so
// that a peer reaches any of them as base + offset after a single exchange of descriptors. Being a memfd it has no
// name: nothing leaks when a process dies, and no container's /dev/shm limit applies. Pages cost nothing until they
// are touched, and large blocks give theirs back when freed. Thread-safe.
#pragma once

#include <fcntl.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "base/unique_fd.h"

namespace ddl {

// What the owner of an arena has given up for good, so that whoever maps it can touch all of it: a page beyond the
// end of a shrunk file would end the process that touches it by SIGBUS. Freed pages can still be given back (a hole
// in the file reads as zeros).
constexpr int kArenaSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

class Arena {
 public:
  // The arena of this process; made on first use with the size set by `configure` (0: as large as physical memory).
  static Arena& process();
  // Takes effect only before the first use. Returns whether it did.
  static bool configure(size_t bytes);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Zeroed on first use only. Throws kResourceError when full, kInvalidState in a forked child.
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
  size_t size_ = 0;
  int owner_pid_ = 0;

  mutable std::mutex mutex_;         // guards what follows
  std::map<size_t, size_t> free_;    // offset -> bytes, never adjacent
  std::map<size_t, size_t> blocks_;  // offset -> bytes of what is handed out
  size_t used_ = 0;
};

}  // namespace ddl
