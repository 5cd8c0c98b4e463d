// What reduce.cc calls: one kernel per (dtype, op), from the widest set that this machine can run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/dtype.h"

namespace ddl {

// As reduce(), but counts bytes (a whole number of elements).
using Kernel = void (*)(void* dst, const void* const* srcs, int n, std::size_t bytes, std::uint64_t divisor);
using KernelFinder = Kernel (*)(DType dtype, ReduceOp op);

// One per kernels_*.cc. Null where dtype or op is none of ours.
Kernel baseline_kernel(DType dtype, ReduceOp op);
Kernel avx2_kernel(DType dtype, ReduceOp op);
Kernel avx512_kernel(DType dtype, ReduceOp op);

struct KernelSet {
  const char* name;
  KernelFinder find;
};
constexpr int kMaxKernelSets = 3;

// In dispatch_x86.cc or dispatch_generic.cc: fills in the sets that this machine can run, the fastest last, and
// returns how many there are. All of them give the same bits; the tests compare them.
int runnable_kernels(KernelSet (&sets)[kMaxKernelSets]);

}  // namespace ddl
