// The loops behind copy(), compiled once per vector width like kernels.h; see there for the rules.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/kernel_table.h"

namespace ddl {
namespace {

using Whole = Vec<unsigned char>;

#if defined(__AVX512F__)
inline void stream(char* to, Whole value) { _mm512_stream_si512(reinterpret_cast<__m512i*>(to), (__m512i)value); }
#elif defined(__AVX2__)
inline void stream(char* to, Whole value) { _mm256_stream_si256(reinterpret_cast<__m256i*>(to), (__m256i)value); }
#elif defined(__SSE2__)
inline void stream(char* to, Whole value) { _mm_stream_si128(reinterpret_cast<__m128i*>(to), (__m128i)value); }
#else
inline void stream(char* to, Whole value) { std::memcpy(to, &value, sizeof value); }
#endif

// Nothing else orders streamed stores before later ones.
inline void end_streams() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

// Destinations are written by whole vectors in their places: a store that touches two cache lines costs two.
template <Stores kStores>
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  constexpr int kSteps = 4;
  char* const out = static_cast<char*>(to);
  const char* const in = static_cast<const char*>(from);
  std::size_t at = (kVectorBytes - reinterpret_cast<std::uintptr_t>(out) % kVectorBytes) % kVectorBytes;
  if (at > bytes) at = bytes;
  std::memcpy(out, in, at);
  for (; bytes - at >= kSteps * kVectorBytes; at += kSteps * kVectorBytes) {
    Whole values[kSteps];
#pragma GCC unroll 4
    for (int k = 0; k < kSteps; ++k) std::memcpy(&values[k], in + at + k * kVectorBytes, kVectorBytes);
#pragma GCC unroll 4
    for (int k = 0; k < kSteps; ++k) {
      if (kStores == Stores::kStreaming) {
        stream(out + at + k * kVectorBytes, values[k]);
      } else {
        std::memcpy(out + at + k * kVectorBytes, &values[k], kVectorBytes);
      }
    }
  }
  if (kStores == Stores::kStreaming) end_streams();
  std::memcpy(out + at, in + at, bytes - at);
}

constexpr CopyKernels copy_kernels() { return {copy_bytes<Stores::kCached>, copy_bytes<Stores::kStreaming>}; }

}  // namespace
}  // namespace ddl
