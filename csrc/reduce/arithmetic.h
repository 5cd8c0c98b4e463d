// The operators of reduce() on vectors, and its division. Included by kernels.h only, once per vector width; see
// there for why everything is in an anonymous namespace.
#pragma once

#include <cstdint>

#include "reduce/dtype.h"

namespace ddl {
namespace {

// Integers add and multiply as unsigned, where wrapping around is defined.
template <typename T>
struct Wrapping {
  using Type = T;
};
template <>
struct Wrapping<std::int8_t> {
  using Type = std::uint8_t;
};
template <>
struct Wrapping<std::int16_t> {
  using Type = std::uint16_t;
};
template <>
struct Wrapping<std::int32_t> {
  using Type = std::uint32_t;
};
template <>
struct Wrapping<std::int64_t> {
  using Type = std::uint64_t;
};

struct Sum {
  template <typename T>
  static Vec<T> apply(Vec<T> a, Vec<T> b) {
    using Wide = Vec<typename Wrapping<T>::Type>;
    return (Vec<T>)((Wide)a + (Wide)b);
  }
};
struct Product {
  template <typename T>
  static Vec<T> apply(Vec<T> a, Vec<T> b) {
    using Wide = Vec<typename Wrapping<T>::Type>;
    return (Vec<T>)((Wide)a * (Wide)b);
  }
};
// `b != b` picks a NaN that arrives; one that is already in `a` stays, since it compares false with everything.
struct Min {
  template <typename T>
  static Vec<T> apply(Vec<T> a, Vec<T> b) {
    return ((b < a) | (b != b)) ? b : a;
  }
};
struct Max {
  template <typename T>
  static Vec<T> apply(Vec<T> a, Vec<T> b) {
    return ((b > a) | (b != b)) ? b : a;
  }
};
struct Or {
  template <typename T>
  static Vec<T> apply(Vec<T> a, Vec<T> b) {
    return a | b;
  }
};
struct And {
  template <typename T>
  static Vec<T> apply(Vec<T> a, Vec<T> b) {
    return a & b;
  }
};

// Division by the divisor of reduce(), prepared once per call. Powers of two are divided in a faster way, as exact.
template <typename T, bool kIsFloat>
class Divider;

template <typename T>
class Divider<T, true> {
 public:
  explicit Divider(std::uint64_t divisor)
      : divides_(divisor != 1),
        by_reciprocal_((divisor & (divisor - 1)) == 0),
        factor_(by_reciprocal_ ? T(1) / static_cast<T>(divisor) : static_cast<T>(divisor)) {}
  bool divides() const { return divides_; }
  void apply(Vec<T>* value) const { *value = by_reciprocal_ ? *value * factor_ : *value / factor_; }

 private:
  bool divides_;
  bool by_reciprocal_;
  T factor_;
};

template <typename T>
class Divider<T, false> {
 public:
  explicit Divider(std::uint64_t divisor) : divisor_(divisor), inverse_(~std::uint64_t{0} / divisor + 1) {
    const bool power_of_two = (divisor & (divisor - 1)) == 0;
    const int shift = __builtin_ctzll(divisor);
    if (power_of_two && shift < kBits) shift_ = shift;
  }
  bool divides() const { return divisor_ != 1; }
  void apply(Vec<T>* value) const {
    if (shift_ >= 0) {
      // A shift rounds down; adding divisor - 1 to what is negative first makes that towards zero.
      const Vec<T> negative = *value >> (kBits - 1);
      *value = (*value + (kSigned ? (negative & static_cast<T>(divisor_ - 1)) : negative ^ negative)) >> shift_;
      return;
    }
    for (int i = 0; i < static_cast<int>(kVectorBytes / sizeof(T)); ++i) (*value)[i] = quotient((*value)[i]);
  }

 private:
  static constexpr int kBits = 8 * static_cast<int>(sizeof(T));
  static constexpr bool kSigned = T(-1) < T(0);
  // By magnitude, since neither the divisor nor the lowest value need fit the signed type. Up to 32 bits, multiplying
  // by 2^64 / divisor rounded up is exact: the excess, below magnitude * divisor / 2^64 of a unit, never carries.
  T quotient(T x) const {
    const bool negative = x < T(0);
    const auto wide = static_cast<std::uint64_t>(x);
    const std::uint64_t magnitude = negative ? 0 - wide : wide;
    const std::uint64_t result =
        kBits <= 32 ? static_cast<std::uint64_t>((static_cast<unsigned __int128>(magnitude) * inverse_) >> 64)
                    : magnitude / divisor_;
    return static_cast<T>(negative ? 0 - result : result);
  }
  std::uint64_t divisor_;
  std::uint64_t inverse_;  // of no meaning (0) for a divisor of 1, which is not used
  int shift_ = -1;         // -1: not a power of two, or none that the type can be shifted by
};

template <typename T>
struct IsFloat {
  static constexpr bool kValue = false;
};
template <>
struct IsFloat<float> {
  static constexpr bool kValue = true;
};
template <>
struct IsFloat<double> {
  static constexpr bool kValue = true;
};
template <typename T>
using DividerOf = Divider<T, IsFloat<T>::kValue>;

}  // namespace
}  // namespace ddl
