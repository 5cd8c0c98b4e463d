// What the core sees of an array: of numpy arrays directly, of anything else through DLPack; of arrays on a GPU also
// as an adapter describes them (GpuMemory), or through the CUDA array interface.
#pragma once

#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "device/gpu.h"
#include "reduce/dtype.h"

namespace ddl {

// Throws kInvalidArgument. `what` names the argument, or the operation.
[[noreturn]] inline void refuse(const char* what, const std::string& why) {
  throw Error(ErrorKind::kInvalidArgument, std::string(what) + ": " + why);
}

// Where an array on a GPU is, and what must come before a copy of it.
struct OnGpu {
  std::shared_ptr<Gpu> gpu;
  // Copies come behind what this stream has, if `ordered` is true. Otherwise they may begin at once.
  bool ordered = false;
  StreamHandle stream = nullptr;
  std::shared_ptr<Gpu::Gate> gate;  // whose stream that is, if the array's owner has made it wait
};

// The driver's handle of a stream, as frameworks name it: to them, the legacy stream is 0.
inline StreamHandle stream_handle(uintptr_t stream) {
  constexpr uintptr_t kLegacyStream = 1;  // CU_STREAM_LEGACY
  return reinterpret_cast<StreamHandle>(stream == 0 ? kLegacyStream : stream);
}

// Memory on a GPU as an adapter describes it that knows its framework's streams: Python's ddl._core.GpuMemory.
struct GpuMemory {
  DevicePointer address = 0;
  uint64_t count = 0;
  DType dtype = DType::kUInt8;
  StreamHandle stream = nullptr;  // what has produced it, and what comes before it may be written
  pybind11::object owner;
};

struct ArrayView {
  char* data = nullptr;  // on a GPU: an address there, which the host cannot touch
  uint64_t count = 0;
  DType dtype = DType::kUInt8;
  bool writable = false;
  pybind11::object owner;               // keeps the memory alive
  std::shared_ptr<const OnGpu> on_gpu;  // null: in memory of the host

  uint64_t bytes() const { return count * element_size(dtype); }
};

// Whether DLPack's number of a kind of memory means that of a CUDA GPU.
bool is_on_gpu(int kind);

// `what` names the argument in errors. Throws kInvalidArgument: not an array, not in memory of the host, not
// contiguous, a type that cannot be reduced. `target`: it will be written, so it must be writable.
ArrayView view_of(const pybind11::object& object, const char* what, bool target);

// The same for arrays that may also be on a CUDA GPU. For these it loads the driver, and throws kResourceError if
// that cannot be.
ArrayView view_anywhere(const pybind11::object& object, const char* what, bool target);

}  // namespace ddl
