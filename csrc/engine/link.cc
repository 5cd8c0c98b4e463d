#include "engine/link.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ddl {

namespace {

constexpr int kMaxParts = 64;                        // iovecs given to the transport at once
constexpr size_t kStagingBytes = size_t{128} << 10;  // small enough to be reduced from cache

}  // namespace

uint64_t Link::send(const Header& header, const std::vector<iovec>& parts) {
  Outgoing& out = outgoing_.emplace_back();
  Header numbered = header;
  numbered.step = static_cast<uint32_t>(posted_sends_);
  encode(numbered, &out.header);
  out.parts = parts;
  if (header.bytes > 0) {
    messages_.fetch_add(1, std::memory_order_relaxed);
    payload_.fetch_add(header.bytes, std::memory_order_relaxed);
  }
  return posted_sends_++;
}

uint64_t Link::receive(const Header& expected, const std::vector<Landing>& landings, const Arithmetic& arithmetic) {
  Incoming& in = incoming_.emplace_back();
  in.expected = expected;
  in.expected.step = static_cast<uint32_t>(posted_receives_);
  in.landings = landings;
  in.arithmetic = arithmetic;
  in.reduces = !landings.empty() && landings.front().src != nullptr;
  return posted_receives_++;
}

bool Link::progress() {
  const bool out = progress_outgoing();
  const bool in = progress_incoming();
  return out || in;
}

void Link::abandon() {
  outgoing_.clear();
  incoming_.clear();
}

bool Link::progress_outgoing() {
  bool moved = false;
  while (!outgoing_.empty()) {
    Outgoing& out = outgoing_.front();
    std::array<iovec, kMaxParts> parts;
    int n = 0;
    for (size_t i = out.next_part; i <= out.parts.size() && n < kMaxParts; ++i) {
      parts[n] = i == 0 ? iovec{out.header.data(), kHeaderBytes} : out.parts[i - 1];
      if (i == out.next_part) {
        parts[n].iov_base = static_cast<char*>(parts[n].iov_base) + out.offset;
        parts[n].iov_len -= out.offset;
      }
      ++n;
    }
    size_t bytes = endpoint_->write(parts.data(), n);
    if (bytes == 0) return moved;
    moved = true;
    for (int i = 0; i < n; ++i) {
      if (bytes < parts[i].iov_len) {
        out.offset += bytes;
        break;
      }
      bytes -= parts[i].iov_len;
      ++out.next_part;
      out.offset = 0;
    }
    if (out.next_part > out.parts.size()) {
      outgoing_.pop_front();
      ++sent_;
    }
  }
  return moved;
}

void Link::check_header(Incoming* in) {
  Header got;
  if (!decode(in->header, &got)) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer_) +
                                               " sent bytes that are not a message of this version of DDL; "
                                               "do all ranks run the same version?");
  }
  const Header& want = in->expected;
  const auto descriptor = [](const Header& h) {
    return descriptor_from(h.signature, h.count, h.sequence, h.history);
  };
  if (!(descriptor(got) == descriptor(want))) throw Mismatch(peer_, descriptor(want), descriptor(got));
  if (got.turn != want.turn || got.step != want.step || got.bytes != want.bytes) {
    throw Error(ErrorKind::kProtocolError,
                "rank " + std::to_string(peer_) + " sent message " + std::to_string(got.step) + " of piece " +
                    std::to_string(got.turn) + " (" + std::to_string(got.bytes) + " bytes) where message " +
                    std::to_string(want.step) + " of piece " + std::to_string(want.turn) + " (" +
                    std::to_string(want.bytes) + " bytes) was due; do all ranks use the same DDL settings?");
  }
}

bool Link::progress_incoming() {
  bool moved = false;
  while (!incoming_.empty()) {
    Incoming& in = incoming_.front();
    // Header and payload in one read, and never a byte beyond this message: what follows may land elsewhere.
    std::array<iovec, kMaxParts> parts;
    int n = 0;
    const size_t header_left = kHeaderBytes - in.header_bytes;
    if (header_left > 0) parts[n++] = {in.header.data() + in.header_bytes, header_left};
    const uint64_t payload_left = in.expected.bytes - in.bytes;
    if (in.reduces && payload_left > 0) {
      if (staging_.empty()) staging_.resize(kStagingBytes);
      parts[n++] = {staging_.data() + staged_, std::min<uint64_t>(payload_left, kStagingBytes - staged_)};
    } else if (payload_left > 0) {
      for (size_t i = in.landing; i < in.landings.size() && n < kMaxParts; ++i) {
        const Landing& landing = in.landings[i];
        const size_t skip = i == in.landing ? in.offset : 0;
        parts[n++] = {landing.dst + skip, landing.bytes - skip};
      }
    }
    if (n > 0) {
      size_t bytes = endpoint_->read(parts.data(), n);
      if (bytes == 0) return moved;
      moved = true;
      const size_t of_header = std::min(bytes, header_left);
      in.header_bytes += of_header;
      bytes -= of_header;
      if (of_header > 0 && in.header_bytes == kHeaderBytes) check_header(&in);
      in.bytes += bytes;
      if (in.reduces) {
        staged_ = reduce_staged(&in, staged_ + bytes);
      } else {
        land(&in, bytes);
      }
    }
    if (in.header_bytes == kHeaderBytes && in.bytes == in.expected.bytes) {
      incoming_.pop_front();
      ++received_;
    }
  }
  return moved;
}

void Link::land(Incoming* in, size_t bytes) {
  while (bytes > 0) {
    const size_t step = std::min(bytes, in->landings[in->landing].bytes - in->offset);
    in->offset += step;
    bytes -= step;
    if (in->offset == in->landings[in->landing].bytes) {
      ++in->landing;
      in->offset = 0;
    }
  }
}

size_t Link::reduce_staged(Incoming* in, size_t bytes) {
  const Arithmetic& a = in->arithmetic;
  const size_t element = element_size(a.dtype);
  size_t at = 0;
  while (bytes - at >= element) {
    Landing& landing = in->landings[in->landing];
    const size_t step = std::min((bytes - at) / element * element, landing.bytes - in->offset);
    if (step > 0) {
      const void* mine = landing.src + in->offset;
      const void* theirs = staging_.data() + at;
      const std::array<const void*, 2> operands = {a.theirs_first ? theirs : mine, a.theirs_first ? mine : theirs};
      reduce(a.dtype, a.op, landing.dst + in->offset, operands.data(), 2, step / element, a.divisor);
    }
    at += step;
    in->offset += step;
    if (in->offset == landing.bytes) {
      ++in->landing;
      in->offset = 0;
    }
  }
  std::memmove(staging_.data(), staging_.data() + at, bytes - at);
  return bytes - at;
}

}  // namespace ddl
