// float16 <-> float32 with AVX-512, 32 at a time. Included by kernels_avx512_x86.cc only.
#pragma once

#include <immintrin.h>

namespace ddl {
namespace {
constexpr int kVectorBytes = 64;
}
}  // namespace ddl

#include "reduce/vector.h"

namespace ddl {
namespace {

void widen_halves(const char* from, Vec<float>* parts) {
  const __m256i* halves = reinterpret_cast<const __m256i*>(from);
  parts[0] = (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(halves));
  parts[1] = (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(halves + 1));
}

void narrow_halves(char* to, const Vec<float>* parts) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  __m256i* halves = reinterpret_cast<__m256i*>(to);
  _mm256_storeu_si256(halves, _mm512_cvtps_ph((__m512)parts[0], kNearest));
  _mm256_storeu_si256(halves + 1, _mm512_cvtps_ph((__m512)parts[1], kNearest));
}

}  // namespace
}  // namespace ddl
