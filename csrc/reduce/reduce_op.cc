#include "reduce/reduce_op.h"

#include "base/find_name.h"

namespace ddl {

const char* name(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kAverage:
      return "average";
  }
  return "invalid";
}

bool from_wire(std::uint8_t number, ReduceOp* out) {
  if (number >= kReduceOpCount) return false;
  *out = static_cast<ReduceOp>(number);
  return true;
}

bool parse(const char* text, ReduceOp* out) { return find_name(text, kReduceOpCount, out); }

}  // namespace ddl
