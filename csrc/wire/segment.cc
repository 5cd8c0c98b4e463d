#include "wire/segment.h"

#include "wire/little_endian.h"

namespace ddl {

void encode(const SegmentHeader& h, SegmentHeader::Bytes* bytes) {
  unsigned char* at = bytes->data();
  put(at, kWireMagic, 4);
  put(at + 4, kWireVersion, 4);
  put(at + 8, h.signature, 8);
  put(at + 16, h.count, 8);
  put(at + 24, h.sequence, 8);
  put(at + 32, h.turn, 8);
  put(at + 40, h.bytes, 8);
  put(at + 48, h.step, 4);
  put(at + 52, h.history, 8);
  put(at + 60, h.length, 4);
  put(at + 64, h.offset, 8);
  put(at + 72, h.codec, 1);
  put(at + 73, 0, 7);  // reserved
}

bool decode(const SegmentHeader::Bytes& bytes, SegmentHeader* h) {
  const unsigned char* at = bytes.data();
  if (get(at, 4) != kWireMagic || get(at + 4, 4) != kWireVersion) return false;
  h->signature = get(at + 8, 8);
  h->count = get(at + 16, 8);
  h->sequence = get(at + 24, 8);
  h->turn = get(at + 32, 8);
  h->bytes = get(at + 40, 8);
  h->step = static_cast<uint32_t>(get(at + 48, 4));
  h->history = get(at + 52, 8);
  h->length = static_cast<uint32_t>(get(at + 60, 4));
  h->offset = get(at + 64, 8);
  h->codec = static_cast<uint8_t>(get(at + 72, 1));
  return true;
}

}  // namespace ddl
