// What an x86-64 processor has and the operating system lets programs use.
#pragma once

#include <cpuid.h>

#include <cstdint>

namespace ddl {

struct Processor {
  bool sse42 = false;
  bool avx2 = false;    // and the conversions of float16
  bool avx512 = false;  // F, BW, DQ and VL, besides avx2
};

// Asks the processor itself. __builtin_cpu_supports asks the compiler's run-time library, and there is one, that of
// the compiler of wheels (zig), which denies everything.
inline Processor ask_processor() {
  Processor has;
  uint32_t a = 0, b = 0, c = 0, d = 0, saved = 0, high = 0;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0) return has;
  has.sse42 = (c & bit_SSE4_2) != 0;
  const bool f16c = (c & bit_F16C) != 0;
  if ((c & bit_OSXSAVE) != 0) __asm__ volatile("xgetbv" : "=a"(saved), "=d"(high) : "c"(0));
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return has;
  constexpr uint32_t kWide = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
  constexpr uint32_t kSaves256 = 0x6, kSaves512 = 0xe6;  // registers that the operating system saves
  has.avx2 = f16c && (b & bit_AVX2) != 0 && (saved & kSaves256) == kSaves256;
  has.avx512 = has.avx2 && (b & kWide) == kWide && (saved & kSaves512) == kSaves512;
  return has;
}

}  // namespace ddl
