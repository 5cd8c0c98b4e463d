// Names and sizes of the element types. The switches have no `default:`, so that the compiler warns at each of them
// when there is a new value.
#include "reduce/dtype.h"

#include "base/find_name.h"

namespace ddl {

std::size_t element_size(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
    case DType::kUInt8:
    case DType::kBool:
      return 1;
    case DType::kFloat16:
    case DType::kBFloat16:
    case DType::kInt16:
    case DType::kUInt16:
      return 2;
    case DType::kFloat32:
    case DType::kInt32:
    case DType::kUInt32:
      return 4;
    case DType::kFloat64:
    case DType::kInt64:
    case DType::kUInt64:
      return 8;
  }
  return 0;
}

const char* name(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return "float16";
    case DType::kBFloat16:
      return "bfloat16";
    case DType::kFloat32:
      return "float32";
    case DType::kFloat64:
      return "float64";
    case DType::kInt8:
      return "int8";
    case DType::kInt16:
      return "int16";
    case DType::kInt32:
      return "int32";
    case DType::kInt64:
      return "int64";
    case DType::kUInt8:
      return "uint8";
    case DType::kUInt16:
      return "uint16";
    case DType::kUInt32:
      return "uint32";
    case DType::kUInt64:
      return "uint64";
    case DType::kBool:
      return "bool";
  }
  return "invalid";
}

bool from_wire(std::uint8_t number, DType* out) {
  if (number >= kDTypeCount) return false;
  *out = static_cast<DType>(number);
  return true;
}

bool parse(const char* text, DType* out) { return find_name(text, kDTypeCount, out); }

}  // namespace ddl
