// The header in front of every frame on a rail: see docs/wire_format.md, "Several rails".
//
// 32 bytes, little-endian. A frame carries bytes of one stream that goes over several connections, and says where in
// the stream they belong; one without bytes only says how far its sender has received.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddl {

constexpr size_t kFrameHeaderBytes = 32;
constexpr uint32_t kFrameMagic = 0x524c4444;  // "DDLR"
constexpr uint32_t kMostFrameBytes = 1 << 20;

struct FrameHeader {
  uint32_t length = 0;    // bytes that follow
  uint64_t offset = 0;    // of the first of them in the stream
  uint64_t received = 0;  // bytes of the other direction's stream that its sender has, all from the first on
  bool answer = false;    // say soon how far you are, once you have this
};

using FrameBytes = std::array<unsigned char, kFrameHeaderBytes>;

void encode(const FrameHeader& header, FrameBytes* bytes);
// False if these bytes are no such header.
bool decode(const FrameBytes& bytes, FrameHeader* header);

}  // namespace ddl
