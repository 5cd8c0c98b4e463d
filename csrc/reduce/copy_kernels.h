// The loops behind copy(), compiled once per vector width like kernels.h; see there for the rules.
#pragma once

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/kernel_table.h"
#include "reduce/prefetch.h"

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

template <Stores kStores, std::size_t kBytes>
inline void copy_step(char* to, const char* from) {
  constexpr std::size_t kVectors = kBytes / kVectorBytes;
  Whole values[kVectors];
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectors; ++k) std::memcpy(&values[k], from + k * kVectorBytes, kVectorBytes);
#pragma GCC unroll 16
  for (std::size_t k = 0; k < kVectors; ++k) {
    if (kStores == Stores::kStreaming) {
      stream(to + k * kVectorBytes, values[k]);
    } else {
      std::memcpy(to + k * kVectorBytes, &values[k], kVectorBytes);
    }
  }
}

// Destinations are written by whole vectors in their places: a store that touches two cache lines costs two.
template <Stores kStores>
void copy_bytes(void* to, const void* from, std::size_t bytes) {
  constexpr std::size_t kStep = 4 * kVectorBytes;
  char* const out = static_cast<char*>(to);
  const char* const in = static_cast<const char*>(from);
  std::size_t at = (kVectorBytes - reinterpret_cast<std::uintptr_t>(out) % kVectorBytes) % kVectorBytes;
  if (at > bytes) at = bytes;
  std::memcpy(out, in, at);
  // (Streaming stores do not read what they replace, and prefetched sources were slower.)
  const std::size_t until = kStores == Stores::kCached ? prefetch_until(bytes) : 0;
  for (; at + kStep <= until; at += kStep) {
    prefetch_to_write(out + at, kStep);
    copy_step<kStores, kStep>(out + at, in + at);
  }
  for (; bytes - at >= kStep; at += kStep) copy_step<kStores, kStep>(out + at, in + at);
  if (kStores == Stores::kStreaming) end_streams();
  std::memcpy(out + at, in + at, bytes - at);
}

constexpr CopyKernels copy_kernels() { return {copy_bytes<Stores::kCached>, copy_bytes<Stores::kStreaming>}; }

}  // namespace
}  // namespace ddl
