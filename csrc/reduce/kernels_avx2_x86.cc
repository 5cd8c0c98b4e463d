// The kernels for x86-64 with AVX2 and F16C (2013 on). CMakeLists.txt compiles it for those.
#include "reduce/half_avx2_x86.h"
// These come after the file that sets their vector width:
#include "reduce/copy_kernels.h"
#include "reduce/kernels.h"
#include "reduce/wire_kernels.h"

namespace ddl {

Kernel avx2_kernel(DType dtype, ReduceOp op) { return kernel_for(dtype, op); }
WireKernels avx2_wire_kernels(WireCodec codec) { return wire_kernels_for(codec); }
CopyKernels avx2_copy_kernels() { return copy_kernels(); }

}  // namespace ddl
