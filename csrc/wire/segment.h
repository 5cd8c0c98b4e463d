// The header in front of every segment of a message between ranks. Format and versions: docs/wire_format.md.
//
// 80 bytes, little-endian. It says to which operation and step the payload belongs, so that a call that does not
// match is found before its bytes are used. A message goes as one or more *segments*, each behind a header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddl {

constexpr uint32_t kWireMagic = 0x314c4444;  // "DDL1"
constexpr uint32_t kWireVersion = 2;
// The longest segment: long enough for few system calls, short enough for the second-level cache.
constexpr uint64_t kSegmentBytes = uint64_t{512} << 10;

struct SegmentHeader {
  static constexpr size_t kBytes = 80;
  using Bytes = std::array<unsigned char, kBytes>;

  uint64_t signature = 0;  // Descriptor::signature
  uint64_t count = 0;      // elements of the operation
  uint64_t sequence = 0;   // number of the operation
  uint64_t history = 0;    // hash of the operations so far
  uint64_t turn = 0;       // number of the piece in its stream
  uint32_t step = 0;       // number of the message on its link, in this direction
  uint64_t bytes = 0;      // payload of the whole message
  uint64_t offset = 0;     // of this segment in it: a multiple of kSegmentBytes
  uint32_t length = 0;     // bytes of this segment, which follow the header
  uint8_t codec = 0;       // how the elements are written: see reduce/wire_codec.h
};

void encode(const SegmentHeader& header, SegmentHeader::Bytes* bytes);
// False if these bytes are not a header of this version. Then nothing else of them is used.
bool decode(const SegmentHeader::Bytes& bytes, SegmentHeader* header);

}  // namespace ddl
