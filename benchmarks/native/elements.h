// Element types: how a value of 16 bits becomes a float and back, and the two loops that add such values up.
//
// float32 is left to the compiler. It does badly at the conversions of 16 bits, so these have `kLanes` values at a
// time where the processor can. Without its conversions there is no float16.
#pragma once

#include <cstdint>
#include <cstring>

#ifdef __SSE2__
#include <immintrin.h>
#endif

namespace limit {

struct Float32 {
  using Bits = float;
  static constexpr size_t kLanes = 1;
  static float load(const float* bits) { return *bits; }
  static void store(float* bits, float value) { *bits = value; }
};

struct Bfloat16 {
  using Bits = uint16_t;
  static float load(const uint16_t* bits) {
    const uint32_t wide = static_cast<uint32_t>(*bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
  static void store(uint16_t* bits, float value) {  // to the nearest, ties to even; no NaN occurs here
    uint32_t wide;
    std::memcpy(&wide, &value, sizeof wide);
    *bits = static_cast<uint16_t>((wide + 0x7fff + ((wide >> 16) & 1)) >> 16);
  }
#ifdef __AVX512BF16__
  static constexpr size_t kLanes = 16;
  static __m512 load_lanes(const uint16_t* bits) {
    const __m256i narrow = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(narrow), 16));
  }
  static void store_lanes(uint16_t* bits, __m512 values) {
    const __m256bh narrow = _mm512_cvtneps_pbh(values);
    std::memcpy(bits, &narrow, sizeof narrow);
  }
#else
  static constexpr size_t kLanes = 1;
#endif
};

#ifdef __F16C__
struct Float16 {
  using Bits = uint16_t;
  static float load(const uint16_t* bits) { return _cvtsh_ss(*bits); }
  static void store(uint16_t* bits, float value) { *bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
#ifdef __AVX512F__
  static constexpr size_t kLanes = 16;
  static __m512 load_lanes(const uint16_t* bits) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(bits)));
  }
  static void store_lanes(uint16_t* bits, __m512 values) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits), _mm512_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
#else
  static constexpr size_t kLanes = 8;
  static __m256 load_lanes(const uint16_t* bits) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bits)));
  }
  static void store_lanes(uint16_t* bits, __m256 values) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(bits), _mm256_cvtps_ph(values, _MM_FROUND_TO_NEAREST_INT));
  }
#endif
};
#endif

// outputs[k][i] = the sum of all inputs[j][i], for each of the kOutputs outputs. An output may be one of the inputs.
template <typename T, int kInputs, int kOutputs>
void add_up(const typename T::Bits* const* inputs, typename T::Bits* const* outputs, size_t count) {
  const typename T::Bits* in[kInputs];  // copies, so that the compiler knows that no store below changes them
  typename T::Bits* out[kOutputs];
  for (int j = 0; j < kInputs; j++) in[j] = inputs[j];
  for (int k = 0; k < kOutputs; k++) out[k] = outputs[k];
  size_t i = 0;
  if constexpr (T::kLanes > 1) {
    for (; i + 2 * T::kLanes <= count; i += 2 * T::kLanes) {
      const size_t next = i + T::kLanes;
      auto sum = T::load_lanes(in[0] + i), second = T::load_lanes(in[0] + next);
      for (int j = 1; j < kInputs; j++) {
        sum += T::load_lanes(in[j] + i);
        second += T::load_lanes(in[j] + next);
      }
      for (int k = 0; k < kOutputs; k++) {  // the two halves of a cache line one after the other
        T::store_lanes(out[k] + i, sum);
        T::store_lanes(out[k] + next, second);
      }
    }
  }
#pragma GCC ivdep
  for (size_t at = i; at < count; at++) {
    float sum = T::load(in[0] + at);
    for (int j = 1; j < kInputs; j++) sum += T::load(in[j] + at);
    for (int k = 0; k < kOutputs; k++) T::store(out[k] + at, sum);
  }
}

}  // namespace limit
