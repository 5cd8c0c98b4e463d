// The header in front of every frame on a rail: see docs/wire_format.md, "Several rails".
//
// 32 bytes, little-endian. A stream goes over several connections. A frame carries some of its bytes, and says where
// in the stream they belong. A frame without bytes only says how much its sender has received.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ddl {

constexpr uint32_t kFrameMagic = 0x524c4444;  // "DDLR"
constexpr uint32_t kMostFrameBytes = 1 << 20;

struct FrameHeader {
  static constexpr size_t kBytes = 32;
  using Bytes = std::array<unsigned char, kBytes>;

  uint32_t length = 0;    // bytes that follow
  uint64_t offset = 0;    // of the first of these bytes in the stream
  uint64_t received = 0;  // how many bytes of the other direction's stream the sender has, without a gap
  bool answer = false;    // the receiver is to say soon that it has this frame
};

void encode(const FrameHeader& header, FrameHeader::Bytes* bytes);
// False if these bytes are not a frame's header.
bool decode(const FrameHeader::Bytes& bytes, FrameHeader* header);

}  // namespace ddl
