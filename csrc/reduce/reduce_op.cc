#include "reduce/reduce_op.h"

#include <cstddef>

#include "base/find_name.h"

namespace ddl {

namespace {

constexpr const char* kNames[] = {"sum", "min", "max", "product", "average"};  // in the order of ReduceOp
static_assert(sizeof(kNames) / sizeof(*kNames) == kReduceOpCount);

}  // namespace

const char* name(ReduceOp op) {
  const auto number = static_cast<std::size_t>(op);
  return number < kReduceOpCount ? kNames[number] : "invalid";
}

bool from_wire(std::uint8_t number, ReduceOp* out) {
  if (number >= kReduceOpCount) return false;
  *out = static_cast<ReduceOp>(number);
  return true;
}

bool parse(const char* text, ReduceOp* out) { return find_name(text, kReduceOpCount, out); }

}  // namespace ddl
