// What reduce.cc calls: one kernel per (dtype, op), from the widest set that this machine can run.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/copy.h"
#include "reduce/dtype.h"
#include "reduce/reduce_op.h"
#include "reduce/string_copy.h"
#include "reduce/wire_codec.h"

namespace ddl {

// As reduce(), but counts bytes (a whole number of elements).
using Kernel = void (*)(void* const* dsts, int m, const void* const* srcs, int n, std::size_t bytes,
                        std::uint64_t divisor);
using KernelFinder = Kernel (*)(DType dtype, ReduceOp op);

struct WireKernels {
  void (*encode)(void* coded, const void* floats, void* residual, std::size_t count);
  void (*decode)(void* floats, const void* coded, std::size_t count);
  void (*add)(void* sum, const void* addend, const void* coded_addend, void* residual, std::size_t count,
              std::uint64_t divisor, bool finish);
};
using WireKernelFinder = WireKernels (*)(WireCodec codec);

WireKernels baseline_wire_kernels(WireCodec codec);
WireKernels avx2_wire_kernels(WireCodec codec);
WireKernels avx512_wire_kernels(WireCodec codec);

struct CopyKernels {
  CopyKernel cached, streaming;
};

CopyKernels baseline_copy_kernels();
CopyKernels avx2_copy_kernels();
CopyKernels avx512_copy_kernels();

// One per kernels_*.cc. Null for a number that is no dtype or op.
Kernel baseline_kernel(DType dtype, ReduceOp op);
Kernel avx2_kernel(DType dtype, ReduceOp op);
Kernel avx512_kernel(DType dtype, ReduceOp op);

struct KernelSet {
  const char* name;
  KernelFinder find;
  WireKernelFinder find_wire;
  CopyKernels copy;
};
constexpr int kMaxKernelSets = 3;

// In dispatch_x86.cc or dispatch_generic.cc: fills in the sets that this machine can run, the fastest last, and
// returns how many there are. All of them give the same bits; the tests compare them.
int runnable_kernels(KernelSet (&sets)[kMaxKernelSets]);

}  // namespace ddl
