// Chooses the kernel: the machine's set once per process, the (dtype, op) entry on every call.
#include "reduce/reduce.h"

#include "reduce/kernel_table.h"

namespace ddl {

namespace {

KernelFinder fastest() {
  KernelSet sets[kMaxKernelSets];
  return sets[runnable_kernels(sets) - 1].find;
}

}  // namespace

void reduce(DType dtype, ReduceOp op, void* dst, const void* const* srcs, int n, std::size_t count,
            std::uint64_t divisor) {
  static const KernelFinder find = fastest();
  find(dtype, op)(dst, srcs, n, count * element_size(dtype), divisor);
}

}  // namespace ddl
