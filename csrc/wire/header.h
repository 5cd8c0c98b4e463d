// The header in front of every segment of a message between ranks. Format and versions: docs/wire_format.md.
//
// 80 bytes, little-endian. It says which operation and which step the payload belongs to, so that calls that do not
// match are found before their bytes are believed. A message goes as one or more *segments*, each behind a header.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddl {

constexpr size_t kHeaderBytes = 80;
constexpr uint32_t kWireMagic = 0x314c4444;  // "DDL1"
constexpr uint32_t kWireVersion = 2;
// The longest segment: long enough for few system calls, short enough to be worked on in the second-level cache.
constexpr uint64_t kSegmentBytes = uint64_t{512} << 10;

struct Header {
  uint64_t signature = 0;  // Descriptor::signature
  uint64_t count = 0;      // elements of the operation
  uint64_t sequence = 0;   // number of the operation
  uint64_t history = 0;    // hash of the operations so far
  uint64_t turn = 0;       // number of the piece in its stream
  uint32_t step = 0;       // number of the message on its link, in this direction
  uint64_t bytes = 0;      // payload of the whole message
  uint64_t offset = 0;     // of this segment in it: a multiple of kSegmentBytes
  uint32_t length = 0;     // of this segment: follows at once
  uint8_t codec = 0;       // how the elements are written: see reduce/wire_codec.h
};

using HeaderBytes = std::array<unsigned char, kHeaderBytes>;

void encode(const Header& header, HeaderBytes* bytes);
// False if these bytes are not a header of this version; nothing else is interpreted then.
bool decode(const HeaderBytes& bytes, Header* header);

}  // namespace ddl
