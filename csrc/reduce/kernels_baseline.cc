// The kernels for every machine: 16-byte vectors, which every compiler can map to what the machine has.
#include "reduce/half_baseline.h"
// These come after the file that sets their vector width:
#include "reduce/copy_kernels.h"
#include "reduce/kernels.h"
#include "reduce/wire_kernels.h"

namespace ddl {

Kernel baseline_kernel(DType dtype, ReduceOp op) { return kernel_for(dtype, op); }
WireKernels baseline_wire_kernels(WireCodec codec) { return wire_kernels_for(codec); }
CopyKernels baseline_copy_kernels() { return copy_kernels(); }

}  // namespace ddl
