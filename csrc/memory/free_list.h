// Which parts of a range of memory are free: the first that is large enough is taken, neighbours are joined again.
// It touches no memory. Not thread-safe.
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace ddl {

inline size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

class FreeList {
 public:
  explicit FreeList(size_t bytes) { free_[0] = bytes; }

  // The offset of a part that nobody has; nothing if there is none. `bytes` is above 0.
  std::optional<size_t> take(size_t bytes, size_t alignment) {
    for (auto it = free_.begin(); it != free_.end(); ++it) {
      const size_t start = round_up(it->first, alignment);
      const size_t end = it->first + it->second;
      if (start > end || end - start < bytes) continue;
      const size_t hole = it->first;
      free_.erase(it);
      if (start > hole) free_[hole] = start - hole;
      if (end > start + bytes) free_[start + bytes] = end - (start + bytes);
      taken_[start] = bytes;
      used_ += bytes;
      return start;
    }
    return std::nullopt;
  }

  // Returns how long the part was; nothing if `start` is none that was taken.
  std::optional<size_t> give_back(size_t start) {
    const auto part = taken_.find(start);
    if (part == taken_.end()) return std::nullopt;
    const size_t length = part->second;
    taken_.erase(part);
    used_ -= length;
    size_t bytes = length;
    auto next = free_.lower_bound(start);
    if (next != free_.end() && start + bytes == next->first) {
      bytes += next->second;
      next = free_.erase(next);
    }
    if (next != free_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == start) {
        before->second += bytes;
        return length;
      }
    }
    free_[start] = bytes;
    return length;
  }

  size_t used() const { return used_; }

 private:
  std::map<size_t, size_t> free_;   // offset -> bytes, never adjacent
  std::map<size_t, size_t> taken_;  // offset -> bytes
  size_t used_ = 0;
};

}  // namespace ddl
