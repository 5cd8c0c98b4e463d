// The loops behind reduce(), written once with the compiler's vector types and compiled once per vector width.
//
// A file kernels_<width>.cc includes a half_*.h, which sets kVectorBytes and converts float16, and then this. All of
// it is in an anonymous namespace on purpose: two widths must never share a function, or the linker would keep the
// one for the wrong machine. For the same reason nothing but plain C headers may be included here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/arithmetic.h"
#include "reduce/codecs.h"
#include "reduce/dtype.h"
#include "reduce/kernel_table.h"
#include "reduce/prefetch.h"
#include "reduce/reduce_op.h"

namespace ddl {
namespace {

// All sources are read before a destination is written, so that this may be one of them.
template <typename C, typename Op, int kSteps>
inline __attribute__((always_inline)) void steps(char* const* dsts, int m, const char* const* srcs, int n,
                                                 std::size_t at, const DividerOf<typename C::Lane>& divider) {
  using T = typename C::Lane;
  constexpr int kVectors = kSteps * C::kParts;
  Vec<T> sum[kVectors];
#pragma GCC unroll 8
  for (int k = 0; k < kSteps; ++k) C::load(srcs[0] + at + k * kVectorBytes, sum + k * C::kParts);
  for (int s = 1; s < n; ++s) {
    Vec<T> next[kVectors];
    const char* src = srcs[s] + at;
#pragma GCC unroll 8
    for (int k = 0; k < kSteps; ++k) C::load(src + k * kVectorBytes, next + k * C::kParts);
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) sum[k] = Op::template apply<T>(sum[k], next[k]);
  }
  if (divider.divides()) {
#pragma GCC unroll 8
    for (int k = 0; k < kVectors; ++k) divider.apply(&sum[k]);
  }
  for (int d = 0; d < m; ++d) {
    char* dst = dsts[d] + at;
#pragma GCC unroll 8
    for (int k = 0; k < kSteps; ++k) C::store(dst + k * kVectorBytes, sum + k * C::kParts);
  }
}

// A rest that does not fill a vector goes through a buffer, padded with zeros: the same arithmetic, the same bits.
template <typename C, typename Op>
void rest(char* const* dsts, int m, const char* const* srcs, int n, std::size_t at, std::size_t bytes,
          const DividerOf<typename C::Lane>& divider) {
  using T = typename C::Lane;
  char buffer[kVectorBytes] = {};
  Vec<T> sum[C::kParts];
  std::memcpy(buffer, srcs[0] + at, bytes);
  C::load(buffer, sum);
  for (int s = 1; s < n; ++s) {
    Vec<T> next[C::kParts];
    std::memcpy(buffer, srcs[s] + at, bytes);
    C::load(buffer, next);
    for (int k = 0; k < C::kParts; ++k) sum[k] = Op::template apply<T>(sum[k], next[k]);
  }
  if (divider.divides()) {
    for (int k = 0; k < C::kParts; ++k) divider.apply(&sum[k]);
  }
  C::store(buffer, sum);
  for (int d = 0; d < m; ++d) std::memcpy(dsts[d] + at, buffer, bytes);
}

// Four vectors at a time hide the latency of one. More would not fit in the registers. Returns where it ended.
template <typename C, typename Op>
inline __attribute__((always_inline)) std::size_t bulk(char* const* dsts, int m, const char* const* srcs, int n,
                                                       std::size_t bytes,
                                                       const DividerOf<typename C::Lane>& divider) {
  constexpr int kSteps = 4 / C::kParts;
  constexpr std::size_t kStep = kSteps * kVectorBytes;
  std::size_t at = 0;
  for (const std::size_t until = prefetch_until(bytes); at + kStep <= until; at += kStep) {
    for (int s = 0; s < n; ++s) prefetch_to_read(srcs[s] + at, kStep);
    for (int d = 0; d < m; ++d) prefetch_to_write(dsts[d] + at, kStep);
    steps<C, Op, kSteps>(dsts, m, srcs, n, at, divider);
  }
  for (; bytes - at >= kStep; at += kStep) steps<C, Op, kSteps>(dsts, m, srcs, n, at, divider);
  return at;
}

// Two sources, the case between two ranks, get loops of their own with the pointers in registers.
template <typename C, typename Op>
void kernel(void* const* dsts, int m, const void* const* srcs, int n, std::size_t bytes, std::uint64_t divisor) {
  const DividerOf<typename C::Lane> divider(C::kDivides ? divisor : 1);
  char* const* const out = reinterpret_cast<char* const*>(dsts);
  const char* const* const in = reinterpret_cast<const char* const*>(srcs);
  std::size_t at = 0;
  if (n == 2 && m <= 2) {
    const char* const pair[2] = {in[0], in[1]};
    char* const both[2] = {out[0], out[m - 1]};
    at = m == 1 ? bulk<C, Op>(both, 1, pair, 2, bytes, divider) : bulk<C, Op>(both, 2, pair, 2, bytes, divider);
  } else {
    at = bulk<C, Op>(out, m, in, n, bytes, divider);
  }
  for (; bytes - at >= kVectorBytes; at += kVectorBytes) steps<C, Op, 1>(out, m, in, n, at, divider);
  if (at < bytes) rest<C, Op>(out, m, in, n, at, bytes - at, divider);
}

template <typename C>
Kernel arithmetic_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
      return kernel<C, Sum>;
    case ReduceOp::kMin:
      return kernel<C, Min>;
    case ReduceOp::kMax:
      return kernel<C, Max>;
    case ReduceOp::kProduct:
      return kernel<C, Product>;
  }
  return nullptr;
}

Kernel bool_kernel(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kMax:
      return kernel<Bool, Or>;
    case ReduceOp::kMin:
    case ReduceOp::kProduct:
      return kernel<Bool, And>;
  }
  return nullptr;
}

Kernel kernel_for(DType dtype, ReduceOp op) {
  switch (dtype) {
    case DType::kFloat16:
      return arithmetic_kernel<Float16>(op);
    case DType::kBFloat16:
      return arithmetic_kernel<BFloat16>(op);
    case DType::kFloat32:
      return arithmetic_kernel<Native<float>>(op);
    case DType::kFloat64:
      return arithmetic_kernel<Native<double>>(op);
    case DType::kInt8:
      return arithmetic_kernel<Native<std::int8_t>>(op);
    case DType::kInt16:
      return arithmetic_kernel<Native<std::int16_t>>(op);
    case DType::kInt32:
      return arithmetic_kernel<Native<std::int32_t>>(op);
    case DType::kInt64:
      return arithmetic_kernel<Native<std::int64_t>>(op);
    case DType::kUInt8:
      return arithmetic_kernel<Native<std::uint8_t>>(op);
    case DType::kUInt16:
      return arithmetic_kernel<Native<std::uint16_t>>(op);
    case DType::kUInt32:
      return arithmetic_kernel<Native<std::uint32_t>>(op);
    case DType::kUInt64:
      return arithmetic_kernel<Native<std::uint64_t>>(op);
    case DType::kBool:
      return bool_kernel(op);
  }
  return nullptr;
}

}  // namespace
}  // namespace ddl
