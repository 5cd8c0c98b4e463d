// Which kernels an x86-64 machine can run, asked of the processor (and, through it, of the operating system).
#include "reduce/kernel_table.h"

namespace ddl {

int runnable_kernels(KernelSet (&sets)[kMaxKernelSets]) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  int count = 0;
  sets[count++] = {"baseline", baseline_kernel, baseline_wire_kernels, baseline_copy_kernels()};
  if (avx2) sets[count++] = {"avx2", avx2_kernel, avx2_wire_kernels, avx2_copy_kernels()};
  if (avx512) sets[count++] = {"avx512", avx512_kernel, avx512_wire_kernels, avx512_copy_kernels()};
  return count;
}

}  // namespace ddl
