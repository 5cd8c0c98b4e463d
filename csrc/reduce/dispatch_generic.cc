// Machines other than x86-64 have one set of kernels.
#include "reduce/kernel_table.h"

namespace ddl {

int runnable_kernels(KernelSet (&sets)[kMaxKernelSets]) {
  sets[0] = {"baseline", baseline_kernel, baseline_wire_kernels, baseline_copy_kernels()};
  return 1;
}

}  // namespace ddl
