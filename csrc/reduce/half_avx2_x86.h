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

void widen_halves(const char* from, Vec<float>* parts) {
  const __m128i* halves = reinterpret_cast<const __m128i*>(from);
  parts[0] = (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(halves));
  parts[1] = (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(halves + 1));
}

void narrow_halves(char* to, const Vec<float>* parts) {
  __m128i* halves = reinterpret_cast<__m128i*>(to);
  _mm_storeu_si128(halves, _mm256_cvtps_ph((__m256)parts[0], _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(halves + 1, _mm256_cvtps_ph((__m256)parts[1], _MM_FROUND_TO_NEAREST_INT));
}

}  // namespace
}  // namespace ddl
