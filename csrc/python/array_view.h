// What the core sees of an array: of numpy arrays directly, of anything else on the CPU through DLPack.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <string>

#include "base/error.h"
#include "reduce/dtype.h"

namespace ddl {

// Throws kInvalidArgument. `what` names the argument, or the operation.
[[noreturn]] inline void refuse(const char* what, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": " + why);
}

struct ArrayView {
  char* data = nullptr;
  uint64_t count = 0;
  DType dtype = DType::kUInt8;
  bool writable = false;
  pybind11::object owner;  // keeps the memory alive

  uint64_t bytes() const { return count * element_size(dtype); }
};

// `what` names the argument in errors. Throws kInvalidArgument: not an array, not on the CPU, not contiguous, a type
// that cannot be reduced. `target`: it will be written, so it must be writable.
ArrayView view_of(const pybind11::object& object, const char* what, bool target);

}  // namespace ddl
