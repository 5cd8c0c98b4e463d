// The element types that DDL knows, as the wire and every layer of the core name them.
//
// Plain values, free of state, usable from any thread. The numbers travel in frame headers (docs/wire_format.md):
// never renumber, only append.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddl {

enum class DType : std::uint8_t {
  kFloat16 = 0,
  kBFloat16 = 1,
  kFloat32 = 2,
  kFloat64 = 3,
  kInt8 = 4,
  kInt16 = 5,
  kInt32 = 6,
  kInt64 = 7,
  kUInt8 = 8,
  kUInt16 = 9,
  kUInt32 = 10,
  kUInt64 = 11,
  kBool = 12,
};
constexpr int kDTypeCount = 13;

// Bytes of one element; 0 for a number that is no DType (it may come from a peer).
std::size_t element_size(DType dtype);

// "float16", "bfloat16", …, "bool"; "invalid" for any other number.
const char* name(DType dtype);

// What a complex number of two such parts is called: "complex64" for float32.
std::string complex_name(DType part);

// The inverse of name(). False if there is no such name; then `*out` stays as it is.
bool parse(const char* text, DType* out);

// Turns a number from the wire into a value. False if there is no such value.
bool from_wire(std::uint8_t number, DType* out);

}  // namespace ddl
