// A queue that reuses its slots: once it has grown, it allocates nothing, and a slot's vectors keep their memory.
// Elements are numbered from 0 on. Those from `first` to `end` - 1 are in the queue.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace ddl {

template <typename T>
class Ring {
 public:
  uint64_t first() const { return first_; }
  uint64_t end() const { return end_; }
  bool empty() const { return first_ == end_; }
  bool has(uint64_t number) const { return number >= first_ && number < end_; }
  T& operator[](uint64_t number) { return slots_[number % slots_.size()]; }
  const T& operator[](uint64_t number) const { return slots_[number % slots_.size()]; }
  T& front() { return (*this)[first_]; }
  // The next slot. It still holds what its last user wrote.
  T& push() {
    if (end_ - first_ == slots_.size()) grow();
    return (*this)[end_++];
  }
  void pop() { ++first_; }
  void clear() { first_ = end_; }

 private:
  void grow() {
    std::vector<T> larger(slots_.empty() ? 4 : 2 * slots_.size());
    for (uint64_t n = first_; n < end_; ++n) larger[n % larger.size()] = std::move((*this)[n]);
    slots_.swap(larger);
  }

  std::vector<T> slots_;
  uint64_t first_ = 0, end_ = 0;
};

}  // namespace ddl
