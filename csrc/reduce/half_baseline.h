// float16 <-> float32 by integer arithmetic, 8 at a time, for machines without an instruction for it. Gives the same
// bits as those that have one, also where the caller's thread flushes denormals. Included by kernels_baseline.cc
// only.
#pragma once

#include <cstdint>
#include <cstring>

namespace ddl {
namespace {
constexpr int kVectorBytes = 16;
}
}  // namespace ddl

#include "reduce/vector.h"

namespace ddl {
namespace {

// Comparisons are of signed numbers, which more machines have; none of the magnitudes uses the sign bit.
using Bits = Vec<std::int32_t>;

// Sign 1, exponent 5 (bias 15), fraction 10 bits become 1, 8 (bias 127), 23. `half` is in the lower 16 bits of each.
Vec<float> widen(Bits half) {
  const Bits sign = (half & 0x8000) << 16;
  const Bits magnitude = half & 0x7fff;
  const Bits normal = (magnitude << 13) + (112 << 23);
  const Bits quiet = (magnitude > 0x7c00) & 0x400000;
  const Bits special = (magnitude << 13) | 0x7f800000 | quiet;
  // A denormal is its fraction times 2^-24; integer to float is exact and makes no float denormal on the way.
  const Bits denormal = (Bits)(__builtin_convertvector(magnitude, Vec<float>) * 0x1p-24f);
  const Bits finite = (magnitude < 0x400) ? denormal : normal;
  return (Vec<float>)(sign | ((magnitude >= 0x7c00) ? special : finite));
}

Bits narrow(Vec<float> value) {
  const Bits bits = (Bits)value;
  const Bits magnitude = bits & 0x7fffffff;
  // Add just under half of the last place that stays, or exactly half where that place is odd; then cut.
  // Unsigned: gcc reorders sums of vectors, and in its order the largest magnitude would overflow.
  using Words = Vec<std::uint32_t>;
  const Bits normal = (Bits)((Words)magnitude - ((112u << 23) - 0xfffu) + (Words)((magnitude >> 13) & 1)) >> 13;
  // Below 2^-14 the last place is worth 2^-24, as it is in [0.5, 1): adding 0.5 makes the processor round there.
  const Bits denormal = (Bits)((Vec<float>)magnitude + 0.5f) - 0x3f000000;
  const Bits nan = ((magnitude >> 13) & 0x3ff) | 0x7e00;
  Bits result = (magnitude < 0x38800000) ? denormal : normal;       // 2^-14
  result = (magnitude >= 0x477ff000) ? (Bits{} + 0x7c00) : result;  // 65520, the first that rounds to infinity
  result = (magnitude > 0x7f800000) ? nan : result;
  return ((bits >> 16) & 0x8000) | result;
}

typedef std::uint16_t Halves __attribute__((vector_size(kVectorBytes / 2)));

Vec<float> widen_in_order(const char* from) {
  Halves halves;
  std::memcpy(&halves, from, sizeof halves);
  return widen(__builtin_convertvector(halves, Bits));
}

void narrow_in_order(char* to, Vec<float> value) {
  const Halves halves = __builtin_convertvector(narrow(value), Halves);
  std::memcpy(to, &halves, sizeof halves);
}

// The two halves of a 32-bit word go to different parts, so that no lane moves.
void widen_halves(const char* from, Vec<float>* parts) {
  Vec<std::uint32_t> words;
  std::memcpy(&words, from, sizeof words);
  parts[0] = widen((Bits)(words & 0xffffu));
  parts[1] = widen((Bits)(words >> 16));
}

void narrow_halves(char* to, const Vec<float>* parts) {
  const Bits words = narrow(parts[0]) | (narrow(parts[1]) << 16);
  std::memcpy(to, &words, sizeof words);
}

}  // namespace
}  // namespace ddl
