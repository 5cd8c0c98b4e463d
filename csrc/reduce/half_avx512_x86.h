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

Vec<float> widen_in_order(const char* from) {
  return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

void narrow_in_order(char* to, Vec<float> value) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtps_ph((__m512)value, kNearest));
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
