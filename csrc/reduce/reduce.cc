// Chooses the kernel: the machine's set once per process, the (dtype, op) entry on every call. Helpers take parts of
// large reductions and copies; only this file asks them.
#include "reduce/reduce.h"

#include <algorithm>
#include <array>

#include "base/helpers.h"
#include "reduce/copy.h"
#include "reduce/kernel_table.h"
#include "reduce/string_copy.h"
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

CopyKernel copy_kernel(const void* to, const void* from, std::size_t bytes, Stores stores) {
  const CopyKernels& loops = chosen().copy;
  if (stores == Stores::kStreaming) return loops.streaming;
  if (bytes < StringCopies::kWorthIt) return loops.cached;
  static const StringCopies strings(loops.cached);
  return strings.quicker(to, from) ? string_copy : loops.cached;
}

constexpr std::size_t kMostShared = 64;  // arrays of each kind, of a reduction that helpers share

// The same part of each array.
template <typename Pointer, typename Byte>
std::array<Pointer, kMostShared> part_of(Pointer const* arrays, int count, std::size_t begin) {
  std::array<Pointer, kMostShared> parts;
  std::transform(arrays, arrays + count, parts.begin(),
                 [begin](Pointer array) { return static_cast<Byte*>(array) + begin; });
  return parts;
}

}  // namespace

void reduce(DType dtype, ReduceOp op, void* const* dsts, int m, const void* const* srcs, int n, std::size_t count,
            std::uint64_t divisor) {
  const Kernel kernel = chosen().find(dtype, op);
  const std::size_t bytes = count * element_size(dtype);
  if (bytes < Helpers::kWorthSharing || std::max(m, n) > static_cast<int>(kMostShared)) {
    kernel(dsts, m, srcs, n, bytes, divisor);
    return;
  }
  Helpers::share(bytes, [&](std::size_t begin, std::size_t end) {
    kernel(part_of<void*, char>(dsts, m, begin).data(), m, part_of<const void*, const char>(srcs, n, begin).data(), n,
           end - begin, divisor);
  });
}

void copy(void* to, const void* from, std::size_t bytes, Stores stores) {
  const CopyKernel kernel = copy_kernel(to, from, bytes, stores);
  Helpers::share(bytes, [&](std::size_t begin, std::size_t end) {
    kernel(static_cast<char*>(to) + begin, static_cast<const char*>(from) + begin, end - begin);
  });
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
