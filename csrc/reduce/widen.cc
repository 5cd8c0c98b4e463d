#include "reduce/widen.h"

#include <algorithm>
#include <type_traits>

namespace ddl {

namespace {

// Calls `body` with a null pointer to the type's C++ type.
template <typename Body>
void with_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kInt8:
      return body(static_cast<std::int8_t*>(nullptr));
    case DType::kInt16:
      return body(static_cast<std::int16_t*>(nullptr));
    case DType::kInt32:
      return body(static_cast<std::int32_t*>(nullptr));
    case DType::kUInt8:
      return body(static_cast<std::uint8_t*>(nullptr));
    case DType::kUInt16:
      return body(static_cast<std::uint16_t*>(nullptr));
    case DType::kUInt32:
      return body(static_cast<std::uint32_t*>(nullptr));
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
    case DType::kBool:
      return;
  }
}

}  // namespace

bool is_narrow(DType dtype) {
  return dtype >= DType::kInt8 && dtype <= DType::kUInt64 && element_size(dtype) < sizeof(std::int64_t);
}

void widen(std::int64_t* to, const void* from, DType dtype, std::size_t count) {
  with_type(dtype, [&](auto* null) {
    const auto* const numbers = static_cast<const std::remove_pointer_t<decltype(null)>*>(from);
    std::copy(numbers, numbers + count, to);
  });
}

void narrow(void* to, const std::int64_t* from, DType dtype, std::size_t count) {
  with_type(dtype, [&](auto* null) {
    using Number = std::remove_pointer_t<decltype(null)>;
    std::transform(from, from + count, static_cast<Number*>(to),
                   [](std::int64_t number) { return static_cast<Number>(number); });
  });
}

}  // namespace ddl
