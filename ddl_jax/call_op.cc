// The call "ddl_allreduce" of XLA's foreign functions: an all-reduce of some arrays, each for itself, by DDL's core.
//
// Compiled on demand against the headers of the jaxlib that is installed (_primitive.py). It runs in a thread of
// XLA's and needs no Python. Its first argument and its first result are a token, by which XLA keeps the order of
// such calls.
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "xla/ffi/api/ffi.h"

extern "C" {

// As in csrc/python/native_calls.h.
struct DdlNativeCall {
  int32_t collective;  // a ddl::Collective: no all-to-all, gather or scatter of different lengths
  int32_t op;          // a ddl::ReduceOp
  int32_t dtype;       // a ddl::DType
  int32_t root;        // the root, or the other rank of a message
  const void* input;   // null: none
  void* output;        // null: none
  uint64_t count;      // elements of the input; of the output, if there is no input
  uint64_t part;       // elements of each rank's block; 0: the buffers have none
};

struct DdlNativeCalls {
  int (*run)(void* communicator, const struct DdlNativeCall* call, char* text, size_t room);
};

}  // extern "C"

namespace {

namespace ffi = xla::ffi;

constexpr size_t kTextRoom = 1024;

struct Target {
  std::mutex busy;  // one call at a time
  const DdlNativeCalls* calls = nullptr;
  void* communicator = nullptr;
};

Target& target() {
  static Target* const only = new Target;  // never destroyed: XLA's threads may use it until the process ends
  return *only;
}

// A ddl::DType, and how many of its numbers are in an element; -1: DDL has no such type.
struct Type {
  int32_t dtype;
  uint64_t width;
};

Type type_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F16:
      return {0, 1};
    case ffi::DataType::BF16:
      return {1, 1};
    case ffi::DataType::F32:
      return {2, 1};
    case ffi::DataType::F64:
      return {3, 1};
    case ffi::DataType::S8:
      return {4, 1};
    case ffi::DataType::S16:
      return {5, 1};
    case ffi::DataType::S32:
      return {6, 1};
    case ffi::DataType::S64:
      return {7, 1};
    case ffi::DataType::U8:
      return {8, 1};
    case ffi::DataType::U16:
      return {9, 1};
    case ffi::DataType::U32:
      return {10, 1};
    case ffi::DataType::U64:
      return {11, 1};
    case ffi::DataType::PRED:
      return {12, 1};
    case ffi::DataType::C64:
      return {2, 2};
    case ffi::DataType::C128:
      return {3, 2};
    default:  // of XLA's enumeration, which grows
      return {-1, 0};
  }
}

ffi::Error allreduce(int32_t op, ffi::RemainingArgs inputs, ffi::RemainingRets outputs) {
  constexpr int32_t kAllreduce = 1;
  Target& own = target();
  const std::lock_guard<std::mutex> lock(own.busy);
  if (own.calls == nullptr) return ffi::Error(ffi::ErrorCode::kFailedPrecondition, "call ddl_jax.init() first");
  for (size_t i = 1; i < inputs.size(); ++i) {  // behind the token
    const auto input = inputs.get<ffi::AnyBuffer>(i);
    auto output = outputs.get<ffi::AnyBuffer>(i);
    if (!input || !output) return ffi::Error(ffi::ErrorCode::kInternal, "ddl_allreduce: an argument is no array");
    const Type type = type_of(input->element_type());
    if (type.width == 0) return ffi::Error(ffi::ErrorCode::kInvalidArgument, "ddl_allreduce: DDL has no such type");
    const uint64_t count = input->element_count() * type.width;
    const DdlNativeCall call = {kAllreduce, op, type.dtype, 0, input->untyped_data(), (*output)->untyped_data(),
                                count,      0};
    char text[kTextRoom];
    if (own.calls->run(own.communicator, &call, text, sizeof text) != 0) {
      return ffi::Error(ffi::ErrorCode::kUnknown, text);
    }
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(DdlAllreduce, allreduce,
                              ffi::Ffi::Bind().Attr<int32_t>("op").RemainingArgs().RemainingRets());

// From now on calls go to this communicator.
extern "C" void ddl_use(const DdlNativeCalls* calls, void* communicator) {
  Target& own = target();
  const std::lock_guard<std::mutex> lock(own.busy);
  own.calls = calls;
  own.communicator = communicator;
}
