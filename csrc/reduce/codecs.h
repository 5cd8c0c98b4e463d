// How the elements of each type become vectors to compute with, and return. Included by kernels.h only, once per
// vector width; see there for why everything is in an anonymous namespace.
//
// A Codec takes kVectorBytes of memory at a time and makes `kParts` vectors of its `Lane` type of them;
// `kDivides` says whether the divisor means anything to it.
#pragma once

#include <cstdint>
#include <cstring>

namespace ddl {
namespace {

template <typename T>
struct Native {
  using Lane = T;
  static constexpr int kParts = 1;
  static constexpr bool kDivides = true;
  static void load(const char* from, Vec<T>* parts) { std::memcpy(parts, from, kVectorBytes); }
  static void store(char* to, const Vec<T>* parts) { std::memcpy(to, parts, kVectorBytes); }
};

struct Bool : Native<std::uint8_t> {
  static constexpr bool kDivides = false;
  static void load(const char* from, Vec<std::uint8_t>* parts) {
    Native::load(from, parts);
    parts[0] = (Vec<std::uint8_t>)(parts[0] != 0) & 1;
  }
};

// The two bfloat16 of a 32-bit word become two floats, each in the upper half of its own word: no lane moves.
// Rounding adds just under half of the last place, or exactly half where that bit is odd (ties to even). It cannot
// carry a NaN over into infinity or zero: the lower half of a NaN that came from a bfloat16 is zero.
struct BFloat16 {
  using Lane = float;
  static constexpr int kParts = 2;
  static constexpr bool kDivides = true;
  static void load(const char* from, Vec<float>* parts) {
    Vec<std::uint32_t> words;
    std::memcpy(&words, from, kVectorBytes);
    parts[0] = (Vec<float>)(words << 16);
    parts[1] = (Vec<float>)(words & 0xffff0000u);
  }
  static Vec<std::uint32_t> rounded(Vec<float> value) {
    const auto bits = (Vec<std::uint32_t>)value;
    return bits + 0x7fffu + ((bits >> 16) & 1u);
  }
  static void store(char* to, const Vec<float>* parts) {
    const Vec<std::uint32_t> words = (rounded(parts[0]) >> 16) | (rounded(parts[1]) & 0xffff0000u);
    std::memcpy(to, &words, kVectorBytes);
  }
};

// The half_*.h decide which half goes to which part.
struct Float16 {
  using Lane = float;
  static constexpr int kParts = 2;
  static constexpr bool kDivides = true;
  static void load(const char* from, Vec<float>* parts) { widen_halves(from, parts); }
  static void store(char* to, const Vec<float>* parts) { narrow_halves(to, parts); }
};

}  // namespace
}  // namespace ddl
