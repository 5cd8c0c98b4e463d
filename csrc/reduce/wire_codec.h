// float32 written in 16 or 8 bits for the wire: converted in small runs on the way out, and converted and added in
// one pass on the way in. Sums stay float32.
//
// As reduce(): no state, no allocation, the same bits on every machine. Rounds to nearest, ties to even; a NaN stays
// a quiet NaN, and what overflows float16 becomes infinity. kMxInt8 is MXINT8 of the OCP Microscaling Formats 1.0:
// blocks of 32 floats, from the first one on, share a scale; a NaN or an infinity makes its block NaN.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddl {

// The numbers are part of the wire format.
enum class WireCodec : uint8_t { kNone = 0, kBFloat16 = 1, kFloat16 = 2, kMxInt8 = 3 };
constexpr std::size_t kMxBlock = 32;

// So many floats are coded together, in so many bytes. Only the last unit of a message may be shorter.
struct CodedUnit {
  std::size_t floats, bytes;
};
constexpr CodedUnit unit_of(WireCodec codec) {
  return codec == WireCodec::kMxInt8 ? CodedUnit{kMxBlock, kMxBlock + 1} : CodedUnit{1, 2};
}
constexpr std::size_t coded_bytes(WireCodec codec, std::size_t floats) {
  return codec == WireCodec::kMxInt8 ? floats + (floats + kMxBlock - 1) / kMxBlock : 2 * floats;
}
// The inverse. `bytes` end with a whole unit, or with the message.
constexpr std::size_t floats_in(WireCodec codec, std::size_t bytes) {
  return codec == WireCodec::kMxInt8 ? bytes - (bytes + kMxBlock) / (kMxBlock + 1) : bytes / 2;
}

// `residual`, of kMxInt8 only, may be null: what coding drops stays there and is added before the next coding (error
// feedback: Seide et al. 2014, Karimireddy et al. 2019). It is as long as what is coded.
void encode_floats(WireCodec codec, void* coded, const void* floats, void* residual, std::size_t count);
void decode_floats(WireCodec codec, void* floats, const void* coded, std::size_t count);
// sum = (addend + coded_addend) / divisor. If `finish`: plus the residual, and rounded to what the codec can write,
// so that the rank that keeps the sum has the same as the ranks that it sends it to. `sum` may be `addend`.
void add_encoded(WireCodec codec, void* sum, const void* addend, const void* coded_addend, void* residual,
                 std::size_t count, std::uint64_t divisor, bool finish);

}  // namespace ddl
