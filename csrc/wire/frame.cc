#include "wire/frame.h"

#include "wire/little_endian.h"

namespace ddl {

void encode(const FrameHeader& h, FrameHeader::Bytes* bytes) {
  unsigned char* at = bytes->data();
  put(at, kFrameMagic, 4);
  put(at + 4, h.length, 4);
  put(at + 8, h.offset, 8);
  put(at + 16, h.received, 8);
  put(at + 24, h.answer ? 1 : 0, 1);
  put(at + 25, 0, 7);  // reserved
}

bool decode(const FrameHeader::Bytes& bytes, FrameHeader* h) {
  const unsigned char* at = bytes.data();
  h->length = static_cast<uint32_t>(get(at + 4, 4));
  h->offset = get(at + 8, 8);
  h->received = get(at + 16, 8);
  h->answer = get(at + 24, 1) != 0;
  return get(at, 4) == kFrameMagic && h->length <= kMostFrameBytes;
}

}  // namespace ddl
