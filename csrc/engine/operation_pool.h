// Operations that are used again, in the order in which they were given out. Belongs to the submitting thread.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "engine/operation.h"

namespace ddl {

class OperationPool {
 public:
  // `release` releases what a finished operation kept.
  explicit OperationPool(void (*release)(void* kept)) : release_(release) {}
  ~OperationPool() { sweep(); }
  OperationPool(const OperationPool&) = delete;
  OperationPool& operator=(const OperationPool&) = delete;

  // An operation that nobody uses. It is empty, but its strings and vectors keep their memory.
  std::shared_ptr<Operation> take();
  // Releases what finished operations kept.
  void sweep();

 private:
  void (*const release_)(void*);
  std::vector<std::shared_ptr<Operation>> ring_;
  size_t next_ = 0;     // given out next
  size_t oldest_ = 0;   // of those that may keep something
  size_t keeping_ = 0;  // how many from there on may
};

}  // namespace ddl
