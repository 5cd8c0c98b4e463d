#include "reduce/dtype.h"

#include "base/find_name.h"

namespace ddl {

namespace {

struct TypeTraits {
  const char* name;
  std::size_t size;
};

// In the order of DType.
constexpr TypeTraits kTypes[] = {
    {"float16", 2}, {"bfloat16", 2}, {"float32", 4}, {"float64", 8}, {"int8", 1},   {"int16", 2}, {"int32", 4},
    {"int64", 8},   {"uint8", 1},    {"uint16", 2},  {"uint32", 4},  {"uint64", 8}, {"bool", 1},
};
static_assert(sizeof(kTypes) / sizeof(*kTypes) == kDTypeCount);

constexpr TypeTraits kNoType = {"invalid", 0};

const TypeTraits& traits(DType dtype) {
  const auto number = static_cast<std::size_t>(dtype);
  return number < kDTypeCount ? kTypes[number] : kNoType;
}

}  // namespace

std::size_t element_size(DType dtype) { return traits(dtype).size; }

const char* name(DType dtype) { return traits(dtype).name; }

std::string complex_name(DType part) { return "complex" + std::to_string(16 * element_size(part)); }

bool from_wire(std::uint8_t number, DType* out) {
  if (number >= kDTypeCount) return false;
  *out = static_cast<DType>(number);
  return true;
}

bool parse(const char* text, DType* out) { return find_name(text, kDTypeCount, out); }

}  // namespace ddl
