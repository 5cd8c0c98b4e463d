// The loops behind wire_codec.h, compiled once per vector width like kernels.h; see there for the rules.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/arithmetic.h"
#include "reduce/block_kernels.h"
#include "reduce/kernel_table.h"

namespace ddl {
namespace {

constexpr std::size_t kLanes = kVectorBytes / sizeof(float);
typedef std::uint16_t HalfVec __attribute__((vector_size(kVectorBytes / 2)));

struct WireBFloat16 {
  static Vec<float> load(const char* from) {
    HalfVec coded;
    std::memcpy(&coded, from, sizeof coded);
    return (Vec<float>)(__builtin_convertvector(coded, Vec<std::uint32_t>) << 16);
  }
  // Any float32 may come, so a NaN must be kept from being rounded to infinity.
  static Vec<std::uint32_t> upper(Vec<float> value) {
    const auto bits = (Vec<std::uint32_t>)value;
    const Vec<std::uint32_t> rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    const Vec<std::uint32_t> quiet = bits | 0x400000u;
    const auto is_nan = (Vec<std::uint32_t>)(value != value);
    return (is_nan & quiet) | (~is_nan & rounded);
  }
  static void store(char* to, Vec<float> value) {
    const HalfVec coded = __builtin_convertvector(upper(value) >> 16, HalfVec);
    std::memcpy(to, &coded, sizeof coded);
  }
  static Vec<float> rounded(Vec<float> value) { return (Vec<float>)(upper(value) & 0xffff0000u); }
};

struct WireFloat16 {
  static Vec<float> load(const char* from) { return widen_in_order(from); }
  static void store(char* to, Vec<float> value) { narrow_in_order(to, value); }
  static Vec<float> rounded(Vec<float> value) {
    char coded[kVectorBytes / 2];
    narrow_in_order(coded, value);
    return widen_in_order(coded);
  }
};

Vec<float> load_floats(const char* from) {
  Vec<float> value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Calls `body` with pointers to whole vectors: (coded, floats a, floats b). The rest at the end goes through buffers.
template <typename Body>
void by_vectors(char* coded, char* a, const char* b, std::size_t count, bool writes_coded, bool writes_floats,
                Body body) {
  std::size_t i = 0;
  for (; count - i >= kLanes; i += kLanes) body(coded + i * 2, a + i * 4, b + i * 4);
  if (i == count) return;
  char coded_rest[kVectorBytes / 2] = {}, a_rest[kVectorBytes] = {}, b_rest[kVectorBytes] = {};
  const std::size_t remaining = count - i;
  if (!writes_coded) std::memcpy(coded_rest, coded + i * 2, remaining * 2);
  std::memcpy(b_rest, b + i * 4, remaining * 4);
  body(coded_rest, a_rest, b_rest);
  if (writes_coded) std::memcpy(coded + i * 2, coded_rest, remaining * 2);
  if (writes_floats) std::memcpy(a + i * 4, a_rest, remaining * 4);
}

template <typename W>
void encode(void* coded, const void* floats, void*, std::size_t count) {
  auto* const from = static_cast<const char*>(floats);
  by_vectors(static_cast<char*>(coded), const_cast<char*>(from), from, count, true, false,
             [](char* out, char*, const char* in) { W::store(out, load_floats(in)); });
}

template <typename W>
void decode(void* floats, const void* coded, std::size_t count) {
  auto* const to = static_cast<char*>(floats);
  by_vectors(static_cast<char*>(const_cast<void*>(coded)), to, to, count, false, true,
             [](char* in, char* out, const char*) {
               const Vec<float> value = W::load(in);
               std::memcpy(out, &value, sizeof value);
             });
}

template <typename W>
void add(void* sum, const void* addend, const void* coded_addend, void*, std::size_t count, std::uint64_t divisor,
         bool finish) {
  const DividerOf<float> divider(divisor);
  by_vectors(static_cast<char*>(const_cast<void*>(coded_addend)), static_cast<char*>(sum),
             static_cast<const char*>(addend), count, false, true, [&](char* coded, char* out, const char* own) {
               Vec<float> value = load_floats(own) + W::load(coded);
               if (divider.divides()) divider.apply(&value);
               if (finish) value = W::rounded(value);
               std::memcpy(out, &value, sizeof value);
             });
}

template <typename W>
constexpr WireKernels wire_kernels_of() {
  return {encode<W>, decode<W>, add<W>};
}

WireKernels wire_kernels_for(WireCodec codec) {
  switch (codec) {
    case WireCodec::kNone:
      break;
    case WireCodec::kBFloat16:
      return wire_kernels_of<WireBFloat16>();
    case WireCodec::kFloat16:
      return wire_kernels_of<WireFloat16>();
    case WireCodec::kMxInt8:
      return {encode_blocks, decode_blocks, add_blocks};
  }
  return {};
}

}  // namespace
}  // namespace ddl
