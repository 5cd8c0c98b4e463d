// Chooses the kernel: the machine's set once per process, the (dtype, op) entry on every call.
#include "reduce/reduce.h"

#include "reduce/copy.h"
#include "reduce/kernel_table.h"
#include "reduce/wire_codec.h"

namespace ddl {

namespace {

KernelSet fastest() {
  KernelSet sets[kMaxKernelSets];
  return sets[runnable_kernels(sets) - 1];
}

const KernelSet& chosen() {
  static const KernelSet set = fastest();
  return set;
}

}  // namespace

void reduce(DType dtype, ReduceOp op, void* const* dsts, int m, const void* const* srcs, int n, std::size_t count,
            std::uint64_t divisor) {
  chosen().find(dtype, op)(dsts, m, srcs, n, count * element_size(dtype), divisor);
}

void copy(void* to, const void* from, std::size_t bytes, Stores stores) {
  const CopyKernels& kernels = chosen().copy;
  (stores == Stores::kStreaming ? kernels.streaming : kernels.cached)(to, from, bytes);
}

void encode_floats(WireCodec codec, void* coded, const void* floats, void* residual, std::size_t count) {
  chosen().find_wire(codec).encode(coded, floats, residual, count);
}

void decode_floats(WireCodec codec, void* floats, const void* coded, std::size_t count) {
  chosen().find_wire(codec).decode(floats, coded, count);
}

void add_encoded(WireCodec codec, void* sum, const void* addend, const void* coded_addend, void* residual,
                 std::size_t count, std::uint64_t divisor, bool finish) {
  chosen().find_wire(codec).add(sum, addend, coded_addend, residual, count, divisor, finish);
}

}  // namespace ddl
