// The kernels for x86-64 with AVX-512 F, BW, DQ and VL. CMakeLists.txt compiles it for those.
#include "reduce/half_avx512_x86.h"
// These come after the file that sets their vector width:
#include "reduce/copy_kernels.h"
#include "reduce/kernels.h"
#include "reduce/wire_kernels.h"

namespace ddl {

Kernel avx512_kernel(DType dtype, ReduceOp op) { return kernel_for(dtype, op); }
WireKernels avx512_wire_kernels(WireCodec codec) { return wire_kernels_for(codec); }
CopyKernels avx512_copy_kernels() { return copy_kernels(); }

}  // namespace ddl
