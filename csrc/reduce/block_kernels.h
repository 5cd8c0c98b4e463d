// The loops behind WireCodec::kMxInt8: blocks of 32 floats with one scale, written once like kernels.h; see there for
// the rules.
//
// A block is coded as one byte, the biased exponent E of its greatest magnitude, and a signed byte q per float, which
// stands for q * 2^(E - 133). So what was decoded is coded again without loss. E = 255 makes the whole block NaN:
// there is no other way to write a NaN or an infinity. A block below 2^-119 is written as zeros, so that nothing here
// is a float denormal, which some threads flush.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "reduce/arithmetic.h"
#include "reduce/kernel_table.h"

namespace ddl {
namespace {

constexpr std::size_t kBlockLanes = kVectorBytes / sizeof(float);
constexpr std::size_t kBlockVectors = kMxBlock / kBlockLanes;
constexpr std::uint32_t kNotFinite = 255, kLeastExponent = 8;
typedef std::int8_t ByteVec __attribute__((vector_size(kVectorBytes / 4)));

// Below, a whole block is copied in a branch of its own: for a length that it knows the compiler writes a few vector
// moves, for any other a call of memcpy.
struct FloatBlock {
  Vec<float> part[kBlockVectors];
};

FloatBlock load_block(const char* from, std::size_t count) {
  FloatBlock block;
  if (count == kMxBlock) {
    std::memcpy(&block, from, sizeof block);
  } else {
    std::memset(&block, 0, sizeof block);
    std::memcpy(&block, from, count * sizeof(float));
  }
  return block;
}

void store_block(char* to, const FloatBlock& block, std::size_t count) {
  if (count == kMxBlock) {
    std::memcpy(to, &block, sizeof block);
  } else {
    std::memcpy(to, &block, count * sizeof(float));
  }
}

float float_of(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// What q = 1 stands for in a block whose byte is E = `exponent`: 2^(E - 133), or zero or NaN for the whole block.
float step_of(std::uint32_t exponent) {
  if (exponent == kNotFinite) return float_of(0x7fc00000u);
  return exponent < kLeastExponent ? 0.0f : float_of((exponent - 6) << 23);
}

// Without the sign, the order of the bits is that of the magnitudes, with NaN last.
std::uint32_t exponent_of(const FloatBlock& block) {
  Vec<std::int32_t> most = {};
  for (const Vec<float>& part : block.part) {
    const Vec<std::int32_t> magnitude = (Vec<std::int32_t>)part & 0x7fffffff;
    most = magnitude > most ? magnitude : most;
  }
  std::int32_t greatest = 0;
  for (std::size_t lane = 0; lane < kBlockLanes; ++lane) greatest = most[lane] > greatest ? most[lane] : greatest;
  return static_cast<std::uint32_t>(greatest) >> 23;
}

// What the block is once it is coded, as q. Rounds to nearest, ties to even; what would be 128 stays 127.
FloatBlock quantised(const FloatBlock& block, std::uint32_t exponent) {
  const bool none = exponent < kLeastExponent || exponent == kNotFinite;
  const float inverse = none ? 0.0f : float_of((260 - exponent) << 23);
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves no room for a fraction
  FloatBlock q = {};
  for (std::size_t p = 0; p < kBlockVectors && !none; ++p) {
    const Vec<float> whole = (block.part[p] * inverse + kRound) - kRound;
    const Vec<float> most = whole - whole + 127.0f;
    q.part[p] = whole > most ? most : whole < -most ? -most : whole;
  }
  return q;
}

void store_coded(char* coded, std::uint32_t exponent, const FloatBlock& q, std::size_t count) {
  coded[0] = static_cast<char>(exponent < kLeastExponent ? 0 : exponent);
  char bytes[kMxBlock];
  for (std::size_t p = 0; p < kBlockVectors; ++p) {
    const auto whole = __builtin_convertvector(q.part[p], Vec<std::int32_t>);
    const ByteVec narrow = __builtin_convertvector(whole, ByteVec);
    std::memcpy(bytes + p * sizeof narrow, &narrow, sizeof narrow);
  }
  if (count == kMxBlock) {
    std::memcpy(coded + 1, bytes, kMxBlock);
  } else {
    std::memcpy(coded + 1, bytes, count);
  }
}

FloatBlock load_coded(const char* coded, std::size_t count) {
  char bytes[kMxBlock] = {};
  if (count == kMxBlock) {
    std::memcpy(bytes, coded + 1, kMxBlock);
  } else {
    std::memcpy(bytes, coded + 1, count);
  }
  const float step = step_of(static_cast<unsigned char>(coded[0]));
  FloatBlock block;
  for (std::size_t p = 0; p < kBlockVectors; ++p) {
    ByteVec narrow;
    std::memcpy(&narrow, bytes + p * sizeof narrow, sizeof narrow);
    block.part[p] = __builtin_convertvector(__builtin_convertvector(narrow, Vec<std::int32_t>), Vec<float>) * step;
  }
  return block;
}

// Adds what was dropped before, and codes the sum. Returns the values that the code stands for. A block that is not
// finite drops nothing, so that one bad step does not spoil the next ones.
template <typename Store>
FloatBlock code_block(FloatBlock block, char* residual, std::size_t count, Store store) {
  if (residual != nullptr) {
    const FloatBlock dropped = load_block(residual, count);
    for (std::size_t p = 0; p < kBlockVectors; ++p) block.part[p] += dropped.part[p];
  }
  const std::uint32_t exponent = exponent_of(block);
  const FloatBlock q = quantised(block, exponent);
  store(exponent, q);
  FloatBlock stands_for;
  for (std::size_t p = 0; p < kBlockVectors; ++p) stands_for.part[p] = q.part[p] * step_of(exponent);
  if (residual != nullptr && exponent != kNotFinite) {
    FloatBlock dropped;
    for (std::size_t p = 0; p < kBlockVectors; ++p) dropped.part[p] = block.part[p] - stands_for.part[p];
    store_block(residual, dropped, count);
  }
  return stands_for;
}

// Calls `body` with the number of the block's first float, of floats in it, and where it begins among coded blocks.
template <typename Body>
void by_blocks(std::size_t count, Body body) {
  std::size_t coded = 0;
  for (std::size_t i = 0; i < count; i += kMxBlock, coded += kMxBlock + 1) {
    body(i * sizeof(float), count - i < kMxBlock ? count - i : kMxBlock, coded);
  }
}

void encode_blocks(void* coded, const void* floats, void* residual, std::size_t count) {
  auto* const out = static_cast<char*>(coded);
  auto* const in = static_cast<const char*>(floats);
  auto* const kept = static_cast<char*>(residual);
  by_blocks(count, [&](std::size_t at, std::size_t n, std::size_t at_coded) {
    code_block(load_block(in + at, n), kept == nullptr ? nullptr : kept + at, n,
               [&](std::uint32_t exponent, const FloatBlock& q) { store_coded(out + at_coded, exponent, q, n); });
  });
}

void decode_blocks(void* floats, const void* coded, std::size_t count) {
  auto* const out = static_cast<char*>(floats);
  auto* const in = static_cast<const char*>(coded);
  by_blocks(count, [&](std::size_t at, std::size_t n, std::size_t at_coded) {
    store_block(out + at, load_coded(in + at_coded, n), n);
  });
}

void add_blocks(void* sum, const void* addend, const void* coded_addend, void* residual, std::size_t count,
                std::uint64_t divisor, bool finish) {
  const DividerOf<float> divider(divisor);
  auto* const out = static_cast<char*>(sum);
  auto* const own = static_cast<const char*>(addend);
  auto* const in = static_cast<const char*>(coded_addend);
  auto* const kept = static_cast<char*>(residual);
  by_blocks(count, [&](std::size_t at, std::size_t n, std::size_t at_coded) {
    FloatBlock block = load_block(own + at, n);
    const FloatBlock other = load_coded(in + at_coded, n);
    for (std::size_t p = 0; p < kBlockVectors; ++p) {
      block.part[p] += other.part[p];
      if (divider.divides()) divider.apply(&block.part[p]);
    }
    if (finish) {
      block = code_block(block, kept == nullptr ? nullptr : kept + at, n, [](std::uint32_t, const FloatBlock&) {});
    }
    store_block(out + at, block, n);
  });
}

}  // namespace
}  // namespace ddl
