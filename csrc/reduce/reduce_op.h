// The reduction operators that DDL knows. kernels.h has what each does.
//
// Plain values, free of state, usable from any thread. The numbers travel in frame headers (docs/wire_format.md):
// never renumber, only append.
#pragma once

#include <cstdint>

namespace ddl {

enum class ReduceOp : std::uint8_t {
  kSum = 0,
  kMin = 1,
  kMax = 2,
  kProduct = 3,
  kAverage = 4,  // arithmetic of kSum; the division by the number of ranks is `divisor` of reduce()
};
constexpr int kReduceOpCount = 5;

// "sum", "min", …; "invalid" for any other number.
const char* name(ReduceOp op);

// The inverse of name(). False if there is no such name; then `*out` stays as it is.
bool parse(const char* text, ReduceOp* out);

// Turns a number from the wire into a value. False if there is no such value.
bool from_wire(std::uint8_t number, ReduceOp* out);

}  // namespace ddl
