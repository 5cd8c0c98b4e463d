// Which kernels an x86-64 machine can run, asked of the processor (and, through it, of the operating system).
#include "base/processor_x86.h"
#include "reduce/kernel_table.h"

namespace ddl {

int runnable_kernels(KernelSet (&sets)[kMaxKernelSets]) {
  const Processor has = ask_processor();
  int count = 0;
  sets[count++] = {"baseline", baseline_kernel, baseline_wire_kernels, baseline_copy_kernels()};
  if (has.avx2) sets[count++] = {"avx2", avx2_kernel, avx2_wire_kernels, avx2_copy_kernels()};
  if (has.avx512) sets[count++] = {"avx512", avx512_kernel, avx512_wire_kernels, avx512_copy_kernels()};
  return count;
}

}  // namespace ddl
