// What the core sees of an array, made once for each call: of numpy arrays directly, of anything else through DLPack;
// of arrays on a GPU also as an adapter describes them (GpuMemory), or through the CUDA array interface. The core
// knows no complex numbers: to it, each is a pair of real ones.
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

// What an array is made of: numbers, or complex numbers, each of which is a pair of real ones (`width` 2).
struct ElementType {
  DType dtype = DType::kUInt8;
  uint32_t width = 1;

  bool is_complex() const { return width == 2; }
  bool operator==(const ElementType& other) const { return dtype == other.dtype && width == other.width; }
  // "float32", "complex64"
  std::string name() const;
  // As one number, for Python.
  int number() const { return static_cast<int>(dtype) * 2 + (is_complex() ? 1 : 0); }
  static ElementType numbered(int number) { return {static_cast<DType>(number / 2), number % 2 == 0 ? 1U : 2U}; }
};

// Where an array on a GPU is, and what must come before a copy of it.
struct OnGpu {
  std::shared_ptr<Gpu> gpu;
  // If `ordered` is true, copies run after all that is queued on this stream. Otherwise they may begin at once.
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
  ElementType type;
  StreamHandle stream = nullptr;  // what has produced it, and what comes before it may be written
  pybind11::object owner;
};

struct Memory {
  char* data = nullptr;  // on a GPU: an address there, which the host cannot touch
  uint64_t count = 0;    // of elements, as the caller has them
  ElementType type;
  bool writable = false;
  pybind11::object owner;               // keeps the memory alive
  std::shared_ptr<const OnGpu> on_gpu;  // null: in memory of the host

  uint64_t numbers() const { return count * type.width; }
  uint64_t bytes() const { return numbers() * element_size(type.dtype); }
};

// The type of that name. Throws kInvalidArgument if there is none.
ElementType element_type_named(const std::string& name);

// Lets `function` say what an array of a Python type is that DLPack does not tell well: one on a GPU, as its
// framework knows the streams, or one that is not given out. It returns a GpuMemory, another array, or None.
void describe_arrays_of(const pybind11::object& type, pybind11::object function);

// Lets `function` say where an array of exactly that Python type is in memory of the host: DLPack would take some
// microseconds. It returns (what keeps the memory alive, address, elements, ElementType::number()), or None. Without
// a function (None), an array is itself such a tuple.
void describe_host_arrays_of(const pybind11::object& type, pybind11::object function);

// Whether DLPack's number of a kind of memory means that of a CUDA GPU.
bool is_on_gpu(int kind);

// `what` names the argument in errors. Throws kInvalidArgument: not an array, not in memory of the host, not
// contiguous, a type that cannot be reduced. `target`: it will be written, so it must be writable.
Memory host_memory_of(const pybind11::object& object, const char* what, bool target);

// The same for arrays that may also be on a CUDA GPU. For these it loads the driver, and throws kResourceError if
// that cannot be.
Memory memory_of(const pybind11::object& object, const char* what, bool target);

}  // namespace ddl
