// float32 written in 16 bits for the wire: converted in small runs on the way out, and converted and added in one
// pass on the way in. Sums stay float32.
//
// As reduce(): no state, no allocation, the same bits on every machine. Rounds to nearest, ties to even; a NaN stays
// a quiet NaN, and what overflows float16 becomes infinity.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddl {

// The numbers are part of the wire format.
enum class WireCodec : uint8_t { kNone = 0, kBFloat16 = 1, kFloat16 = 2 };
constexpr std::size_t kCodedBytes = 2;  // of an element, with either

void encode_floats(WireCodec codec, void* coded, const void* floats, std::size_t count);
void decode_floats(WireCodec codec, void* floats, const void* coded, std::size_t count);
// sum = (mine + theirs) / divisor; if `finish`, rounded to what the codec can write, so that who keeps the sum has
// the same as who is sent it. `sum` may be `mine`.
void add_encoded(WireCodec codec, void* sum, const void* mine, const void* theirs, std::size_t count,
                 std::uint64_t divisor, bool finish);

}  // namespace ddl
