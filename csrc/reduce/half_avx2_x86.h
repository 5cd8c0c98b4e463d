// float16 <-> float32 with F16C, 16 at a time. Included by kernels_avx2_x86.cc only.
#pragma once

#include <immintrin.h>

namespace ddl {
namespace {
constexpr int kVectorBytes = 32;
}
}  // namespace ddl

#include "reduce/vector.h"

namespace ddl {
namespace {

Vec<float> widen_in_order(const char* from) {
  return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

void narrow_in_order(char* to, Vec<float> value) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph((__m256)value, _MM_FROUND_TO_NEAREST_INT));
}

void widen_halves(const char* from, Vec<float>* parts) {
  parts[0] = widen_in_order(from);
  parts[1] = widen_in_order(from + kVectorBytes / 2);
}

void narrow_halves(char* to, const Vec<float>* parts) {
  narrow_in_order(to, parts[0]);
  narrow_in_order(to + kVectorBytes / 2, parts[1]);
}

}  // namespace
}  // namespace ddl
