// Buffers of one rank, used again and again. Taking them from the arena each time would hide what is looked for: its
// mutex, which ranks that are processes do not share, would order the ranks.
#pragma once

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "drawn.h"
#include "memory/arena.h"

namespace ddl::test {

// A run of values in the arena or out of it; plain memory, as a user's is.
class Buffer {
 public:
  Buffer(size_t count, bool shared) : count_(count), shared_(shared) {
    const size_t bytes = count * sizeof(Value);
    data_ = static_cast<Value*>(shared ? Arena::process().allocate(bytes) : std::malloc(bytes));
  }
  ~Buffer() { shared_ ? Arena::process().free(data_) : std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  Value* data() { return data_; }
  char* bytes() { return reinterpret_cast<char*>(data_); }
  size_t count() const { return count_; }
  bool shared() const { return shared_; }

 private:
  const size_t count_;
  const bool shared_;
  Value* data_;
};

// Belongs to one thread.
class Pool {
 public:
  std::unique_ptr<Buffer> take(size_t count, bool shared) {
    auto& free = free_[{count, shared}];
    if (free.empty()) return std::make_unique<Buffer>(count, shared);
    std::unique_ptr<Buffer> buffer = std::move(free.back());
    free.pop_back();
    return buffer;
  }

  // Writes over it at once: a peer that still reads or writes it shows.
  void give_back(std::unique_ptr<Buffer> buffer) {
    std::memset(buffer->bytes(), 0x55, buffer->count() * sizeof(Value));
    free_[{buffer->count(), buffer->shared()}].push_back(std::move(buffer));
  }

 private:
  std::map<std::pair<size_t, bool>, std::vector<std::unique_ptr<Buffer>>> free_;
};

}  // namespace ddl::test
