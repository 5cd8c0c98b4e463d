#include "reduce.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

namespace fake_nccl {

namespace {

// Each stands for a type in memory: `Value` is what it is computed in.
template <typename T>
struct Plain {
  using Value = T;
  static constexpr size_t kBytes = sizeof(T);
  static T load(const char* from) {
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
  }
  static void store(T value, char* to) { std::memcpy(to, &value, sizeof value); }
};

uint32_t bits_of(float value) { return Plain<uint32_t>::load(reinterpret_cast<const char*>(&value)); }
float float_of(uint32_t bits) { return Plain<float>::load(reinterpret_cast<const char*>(&bits)); }

// To nearest, ties to even: the `dropped` low bits decide.
uint32_t rounded(uint32_t bits, int dropped) {
  const uint32_t half = (uint32_t{1} << (dropped - 1)) - 1;
  return (bits + half + ((bits >> dropped) & 1)) >> dropped;
}

struct Bfloat16 {
  using Value = float;
  static constexpr size_t kBytes = 2;
  static float load(const char* from) { return float_of(uint32_t{Plain<uint16_t>::load(from)} << 16); }
  static void store(float value, char* to) {
    const uint32_t bits = bits_of(value);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    Plain<uint16_t>::store(static_cast<uint16_t>(nan ? (bits >> 16) | 0x40 : rounded(bits, 16)), to);
  }
};

struct Float16 {
  using Value = float;
  static constexpr size_t kBytes = 2;
  static float load(const char* from) {
    const uint32_t bits = Plain<uint16_t>::load(from);
    const uint32_t sign = (bits & 0x8000) << 16, exponent = (bits >> 10) & 0x1f, fraction = bits & 0x3ff;
    if (exponent == 0x1f) return float_of(sign | 0x7f800000 | (fraction << 13));
    if (exponent != 0) return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
    const float small = static_cast<float>(fraction) / 16777216;  // in units of 2^-24
    return sign != 0 ? -small : small;
  }
  static void store(float value, char* to) {
    const uint32_t bits = bits_of(value), sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    uint32_t result;
    if (size > 0x7f800000) {
      result = 0x7e00;
    } else if (size >= 0x477ff000) {  // rounds to more than the greatest
      result = 0x7c00;
    } else if (size >= 0x38800000) {
      result = rounded(size - (uint32_t{112} << 23), 13);
    } else {  // the sum's last bit is 2^-24: the processor rounds
      result = bits_of(float_of(size) + 0.5f) - bits_of(0.5f);
    }
    Plain<uint16_t>::store(static_cast<uint16_t>(sign | result), to);
  }
};

// Integers wrap, which signed ones must not do in C++.
template <typename T>
T added(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  return a + b;
}

template <typename T>
T multiplied(T a, T b) {
  if constexpr (std::is_integral_v<T>) return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  return a * b;
}

template <typename T>
T combined(Operator op, T a, T b) {
  switch (op) {
    case Operator::kSum:
    case Operator::kAvg:
      return added(a, b);
    case Operator::kProd:
      return multiplied(a, b);
    case Operator::kMax:
      return std::max(a, b);
    case Operator::kMin:
      return std::min(a, b);
  }
  return a;
}

template <typename T>
void reduce_as(Operator op, const std::vector<const char*>& inputs, size_t count, char* result) {
  using Value = typename T::Value;
  for (size_t i = 0; i < count; ++i) {
    const size_t at = i * T::kBytes;
    Value value = T::load(inputs[0] + at);
    for (size_t input = 1; input < inputs.size(); ++input) {
      value = combined<Value>(op, value, T::load(inputs[input] + at));
    }
    if (op == Operator::kAvg) value = static_cast<Value>(value / static_cast<Value>(inputs.size()));
    T::store(value, result + at);
  }
}

}  // namespace

size_t size_of(Type type) {
  switch (type) {
    case Type::kInt8:
    case Type::kUint8:
      return 1;
    case Type::kFloat16:
    case Type::kBfloat16:
      return 2;
    case Type::kInt32:
    case Type::kUint32:
    case Type::kFloat32:
      return 4;
    case Type::kInt64:
    case Type::kUint64:
    case Type::kFloat64:
      return 8;
  }
  return 0;
}

void reduce(Type type, Operator op, const std::vector<const char*>& inputs, size_t count, char* result) {
  switch (type) {
    case Type::kInt8:
      return reduce_as<Plain<int8_t>>(op, inputs, count, result);
    case Type::kUint8:
      return reduce_as<Plain<uint8_t>>(op, inputs, count, result);
    case Type::kInt32:
      return reduce_as<Plain<int32_t>>(op, inputs, count, result);
    case Type::kUint32:
      return reduce_as<Plain<uint32_t>>(op, inputs, count, result);
    case Type::kInt64:
      return reduce_as<Plain<int64_t>>(op, inputs, count, result);
    case Type::kUint64:
      return reduce_as<Plain<uint64_t>>(op, inputs, count, result);
    case Type::kFloat16:
      return reduce_as<Float16>(op, inputs, count, result);
    case Type::kFloat32:
      return reduce_as<Plain<float>>(op, inputs, count, result);
    case Type::kFloat64:
      return reduce_as<Plain<double>>(op, inputs, count, result);
    case Type::kBfloat16:
      return reduce_as<Bfloat16>(op, inputs, count, result);
  }
}

}  // namespace fake_nccl
