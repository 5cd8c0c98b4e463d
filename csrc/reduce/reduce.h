// The arithmetic of a collective: (srcs[0][i] op srcs[1][i] op … op srcs[n-1][i]) / divisor, left to right, is stored
// to dsts[0][i], …, dsts[m-1][i].
//
// Safe from any thread, allocates nothing, throws nothing. Each source is read once and each destination is written
// once, by this thread and, where there are helpers (base/helpers.h), by them. The result depends on the values and
// their order only, never on the machine's vector width, so that ranks on different hosts hold the same bits.
//
// What each kind of type does:
//   float16, bfloat16  widened to float32, accumulated over all n sources there, divided there, rounded once
//                      (nearest, ties to even). A NaN stays a quiet NaN; overflow gives infinity.
//   float32, float64   in their own type. x / divisor is the correctly rounded quotient; for a power of two it is
//                      computed as a multiplication by the exact reciprocal, which gives the same bits.
//   integers           sum and product wrap around (two's complement); division truncates towards zero.
//   bool               sum, average and max are `or`; product and min are `and`. Any non-zero byte is true; the
//                      result is 0 or 1; the divisor is ignored.
// min and max of floats: NaN if any operand is NaN. Of equal values the earlier source's wins, so that of -0.0 and
// +0.0 the result has the sign of whichever came first. The payload of a NaN is not specified.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/dtype.h"
#include "reduce/reduce_op.h"

namespace ddl {

// m >= 1, n >= 1, divisor >= 1. Nothing needs alignment. A destination may be exactly the same memory as any one or
// more of the sources; any other overlap is undefined.
void reduce(DType dtype, ReduceOp op, void* const* dsts, int m, const void* const* srcs, int n, std::size_t count,
            std::uint64_t divisor = 1);

}  // namespace ddl
