#include "engine/link.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "transport/factory.h"

namespace ddl {

namespace {

constexpr size_t kMaxParts = 64;  // iovecs given to the transport at once
// Over rails, messages up to here are copied, and sent for who waits; longer ones when the peer has them.
constexpr uint64_t kCopiedMessage = 64 << 10;

Descriptor descriptor_of(const Header& h) { return descriptor_from(h.signature, h.count, h.sequence, h.history); }

WireCodec codec_of(const Header& h) { return static_cast<WireCodec>(h.codec); }

// Of all segments but a message's last: no coded unit is cut.
uint64_t segment_bytes(WireCodec codec) {
  return codec == WireCodec::kNone ? kSegmentBytes : kSegmentBytes / unit_of(codec).bytes * unit_of(codec).bytes;
}

uint64_t bytes_in_memory(WireCodec codec, uint64_t bytes) {
  return codec == WireCodec::kNone ? bytes : floats_in(codec, bytes) * sizeof(float);
}

}  // namespace

void Link::add(std::unique_ptr<Endpoint> endpoint) {
  connections_.push_back(std::make_unique<Connection>());
  connections_.back()->endpoint = std::move(endpoint);
}

void Link::add_rail(std::unique_ptr<Endpoint> rail, size_t rails_in_all) {
  if (rails_ == nullptr) {
    auto rails = make_rails(peer_, rails_in_all);
    rails_ = rails.get();
    add(std::move(rails));
  }
  rails_->add(std::move(rail));
}

uint64_t Link::send(const Header& header, const std::vector<iovec>& parts, char* residual) {
  const uint64_t number = outgoing_.end();
  Outgoing& out = outgoing_.push();
  out.header = header;
  out.header.step = static_cast<uint32_t>(number);
  out.parts = parts;
  out.residual = residual;
  out.cut = out.written = 0;
  out.part = out.in_part = 0;
  out.begun = false;
  out.kept = rails_ != nullptr && header.bytes > kCopiedMessage && codec_of(header) == WireCodec::kNone;
  if (header.bytes > 0) {
    messages_.fetch_add(1, std::memory_order_relaxed);
    payload_.fetch_add(header.bytes, std::memory_order_relaxed);
  }
  return number;
}

uint64_t Link::receive(const Header& expected, const std::vector<Landing>& landings, const Arithmetic& arithmetic) {
  const uint64_t number = incoming_.end();
  Incoming& in = incoming_.push();
  in.expected = expected;
  in.expected.step = static_cast<uint32_t>(number);
  in.landings = landings;
  in.arithmetic = arithmetic;
  in.staged = codec_of(expected) != WireCodec::kNone || (!landings.empty() && landings.front().src != nullptr);
  in.arrived = 0;
  in.begun = false;
  return number;
}

bool Link::progress() {
  bool moved = rails_ != nullptr && rails_->progress();
  moved |= progress_outgoing();
  for (const auto& connection : connections_) moved |= progress_incoming(connection.get());
  return settle() || moved;
}

bool Link::progress_outgoing() {
  if (!may_send()) return false;
  bool moved = false;
  // A segment for each connection that takes one, and round again: none is left out while another is ready. Messages
  // begin with one after the other, so that those of one segment use all, too.
  const size_t n = connections_.size();
  for (bool sent = true; sent;) {
    sent = false;
    const uint64_t begin = cutting_;
    for (size_t i = 0; i < n; ++i) sent |= progress_outgoing(connections_[(begin + i) % n].get());
    moved |= sent;
  }
  const auto sending = [](const auto& connection) { return connection->sending; };
  const bool left = std::any_of(connections_.begin(), connections_.end(), sending);
  if (moved && turn_ != nullptr) turn_->moved(this, left);
  return moved;
}

// Forgets the messages that have been sent; returns whether there were any.
bool Link::settle() {
  const uint64_t before = outgoing_.first();
  while (!outgoing_.empty()) {
    const Outgoing& out = outgoing_.front();
    if (!out.begun || out.written < out.header.bytes) break;
    if (rails_ != nullptr && rails_->settled() < out.end) break;
    outgoing_.pop();
  }
  return outgoing_.first() != before;
}

void Link::abandon() {
  outgoing_.clear();
  incoming_.clear();
  cutting_ = outgoing_.end();
  if (turn_ != nullptr) turn_->give_up(this);
  if (rails_ != nullptr) rails_->abandon();
  for (const auto& connection : connections_) connection->sending = connection->placed = false;
}

void Link::poll_fds(Polled* fds) const {
  if (rails_ != nullptr) return rails_->poll_fds(fds, !incoming_.empty());
  for (const auto& connection : connections_) {
    const int fd = connection->endpoint->poll_fd();
    if (fd >= 0 && !connection->ended) fds->emplace_back(fd, connection->sending && may_send());
  }
}

// --- sending ------------------------------------------------------------------------------------------------------

// Gives the connection the next segment, if there is one.
bool Link::cut_segment(Connection* c) {
  if (cutting_ == outgoing_.end()) return false;
  Outgoing& out = outgoing_[cutting_];
  Header header = out.header;
  header.offset = out.cut;
  header.length = static_cast<uint32_t>(std::min(segment_bytes(codec_of(header)), header.bytes - out.cut));
  c->sending = true;
  c->out_message = cutting_;
  c->out_length = header.length;
  c->out_next = 0;
  c->out_parts.clear();
  encode(header, &c->out_header);
  c->out_parts.push_back({c->out_header.data(), kHeaderBytes});
  const WireCodec codec = codec_of(header);
  size_t in_memory = bytes_in_memory(codec, header.length);
  char* encoded = nullptr;
  if (codec != WireCodec::kNone) {
    if (c->encoded.size() < header.length) c->encoded.resize(kSegmentBytes);
    encoded = c->encoded.data();
    // Not an empty part: it would look as if the transport took no more.
    if (header.length > 0) c->out_parts.push_back({encoded, header.length});
  }
  while (in_memory > 0) {
    const iovec& part = out.parts[out.part];
    const size_t step = std::min(in_memory, part.iov_len - out.in_part);
    char* const from = static_cast<char*>(part.iov_base) + out.in_part;
    if (codec == WireCodec::kNone) {
      c->out_parts.push_back({from, step});
    } else {
      encode_floats(codec, encoded, from, out.residual, step / sizeof(float));
      encoded += coded_bytes(codec, step / sizeof(float));
      if (out.residual != nullptr) out.residual += step;
    }
    in_memory -= step;
    out.in_part += step;
    if (out.in_part == part.iov_len) {
      ++out.part;
      out.in_part = 0;
    }
  }
  out.cut += header.length;
  out.begun = true;
  if (out.cut == out.header.bytes) ++cutting_;
  return true;
}

// Up to the end of a segment.
bool Link::progress_outgoing(Connection* c) {
  bool moved = false;
  if (!c->sending && !cut_segment(c)) return false;
  while (c->sending) {
    iovec* const parts = c->out_parts.data() + c->out_next;
    const size_t n = std::min(kMaxParts, c->out_parts.size() - c->out_next);
    const bool kept = outgoing_[c->out_message].kept;
    size_t bytes =
        kept ? rails_->write_kept(parts, static_cast<int>(n)) : c->endpoint->write(parts, static_cast<int>(n));
    if (bytes == 0) return moved;
    moved = true;
    while (bytes > 0) {
      iovec& part = c->out_parts[c->out_next];
      const size_t step = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      bytes -= step;
      if (part.iov_len == 0) ++c->out_next;
    }
    if (c->out_next < c->out_parts.size()) continue;
    c->sending = false;
    Outgoing& out = outgoing_[c->out_message];
    out.written += c->out_length;
    if (rails_ != nullptr) out.end = rails_->accepted();
    settle();
  }
  return moved;
}

// --- receiving ----------------------------------------------------------------------------------------------------

void Link::check_header(const Incoming& in, const Header& got) const {
  const Header& want = in.expected;
  const bool alike = descriptor_of(got) == descriptor_of(want);
  // Over one connection messages come in order. If not, the peer makes more connections than this rank expects.
  const bool ordered = !single_ || (connections_.size() == 1 && got.step == want.step);
  if (!alike && ordered) throw Mismatch(peer_, descriptor_of(want), descriptor_of(got));
  const uint64_t segment = segment_bytes(codec_of(want));
  const bool fits = got.offset % segment == 0 && got.offset <= want.bytes &&
                    got.length == std::min(segment, want.bytes - got.offset);
  const bool in_turn = !single_ || got.offset == in.arrived;
  if (alike && got.turn == want.turn && got.step == want.step && got.bytes == want.bytes && got.codec == want.codec &&
      fits && in_turn) {
    return;
  }
  const auto text = [](const Header& h) {
    return "message " + std::to_string(h.step) + " of piece " + std::to_string(h.turn) + " (" +
           std::to_string(h.bytes) + " bytes, codec " + std::to_string(h.codec) + ")";
  };
  throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer_) + " sent " + text(got) + ", bytes " +
                                             std::to_string(got.offset) + " to " +
                                             std::to_string(got.offset + got.length) + ", where " + text(want) +
                                             " was due; do all ranks use the same DDL settings?");
}

// Finds the message of the segment whose header is here. False if this rank does not expect it yet.
bool Link::place(Connection* c) {
  Header got;
  if (!decode(c->in_header, &got)) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer_) +
                                               " sent bytes that are not a message of this version of DDL; "
                                               "do all ranks run the same version?");
  }
  const uint64_t first = incoming_.first();
  const uint32_t ahead = got.step - static_cast<uint32_t>(first);
  const bool impossible = single_ ? ahead != 0 : ahead >= uint32_t{1} << 31;  // the check below says so
  const uint64_t message = impossible ? first : first + ahead;
  if (!incoming_.has(message)) return false;
  check_header(incoming_[message], got);
  c->in_message = message;
  c->in_offset = got.offset;
  c->in_length = got.length;
  c->in_done = 0;
  c->left = 0;
  incoming_[message].begun = true;
  return c->placed = true;
}

// Appends where the segment's next bytes go.
size_t Link::prepare_read(Connection* c, Incoming* in, uint32_t length, std::vector<iovec>* parts) {
  const size_t missing = length - c->in_done - c->left;
  if (missing == 0) return 0;
  if (in->staged) {
    std::memcpy(staging_->data(), c->left_bytes.data(), c->left);
    parts->push_back({staging_->data() + c->left, missing});
    return missing;
  }
  uint64_t skip = c->in_offset + c->in_done;
  size_t left = missing;
  for (size_t i = 0; left > 0 && parts->size() < kMaxParts; ++i) {
    const Landing& landing = in->landings[i];
    if (skip >= landing.bytes) {
      skip -= landing.bytes;
      continue;
    }
    const size_t step = std::min<uint64_t>(left, landing.bytes - skip);
    parts->push_back({landing.dst + skip, step});
    left -= step;
    skip = 0;
  }
  return missing - left;
}

// Of several connections, one that ends between two segments may have brought all that it was to bring. And where
// others are still being made the peer may have them already, have sent the rest over them and left.
size_t Link::read(Connection* c) {
  try {
    return c->endpoint->read(parts_.data(), static_cast<int>(parts_.size()));
  } catch (const LostPeer&) {
    c->ended = true;
    const auto open = [](const std::unique_ptr<Connection>& other) { return !other->ended; };
    const bool more = connections_.size() < expected_ || std::any_of(connections_.begin(), connections_.end(), open);
    if (c->in_header_bytes > 0 || !more) throw;
    return 0;
  }
}

bool Link::progress_incoming(Connection* c) {
  bool moved = false;
  while (!incoming_.empty() && !c->ended) {
    // Never a byte beyond this segment is read: what follows may land elsewhere.
    parts_.clear();
    const size_t header_left = kHeaderBytes - c->in_header_bytes;
    if (header_left > 0) {
      parts_.push_back({c->in_header.data() + c->in_header_bytes, header_left});
      if (single_) {
        // Only one segment can be next, so its payload is read along with its header.
        Incoming& in = incoming_.front();
        c->in_offset = in.arrived;
        c->in_done = 0;
        c->left = 0;
        const uint64_t segment = segment_bytes(codec_of(in.expected));
        const auto length = static_cast<uint32_t>(std::min(segment, in.expected.bytes - in.arrived));
        prepare_read(c, &in, length, &parts_);
      }
    } else {
      if (!c->placed && !place(c)) return moved;
      prepare_read(c, &incoming_[c->in_message], c->in_length, &parts_);
    }
    size_t bytes = 0;
    if (!parts_.empty()) {
      bytes = read(c);
      if (bytes == 0) return moved;
      moved = true;
      const size_t of_header = std::min(bytes, header_left);
      c->in_header_bytes += of_header;
      bytes -= of_header;
      if (c->in_header_bytes < kHeaderBytes) continue;
      if (!c->placed && !place(c)) return moved;
    }
    arrive(c, bytes);
  }
  return moved;
}

void Link::arrive(Connection* c, size_t bytes) {
  Incoming& in = incoming_[c->in_message];
  if (in.staged) {
    take_staged(c, &in, c->left + bytes);
  } else {
    c->in_done += static_cast<uint32_t>(bytes);
  }
  if (c->in_done < c->in_length) return;
  in.arrived += c->in_length;
  c->in_header_bytes = 0;
  c->placed = false;
  while (!incoming_.empty() && incoming_.front().begun &&
         incoming_.front().arrived == incoming_.front().expected.bytes) {
    incoming_.pop();
  }
}

// `bytes` are in the staging; an incomplete element, or coded unit of them, at their end is kept for the next time.
void Link::take_staged(Connection* c, Incoming* in, size_t bytes) {
  const WireCodec codec = codec_of(in->expected);
  const bool coded = codec != WireCodec::kNone;
  const size_t in_memory = element_size(in->arithmetic.dtype), unit = coded ? unit_of(codec).bytes : in_memory;
  const uint64_t before = c->in_offset + c->in_done;
  const size_t whole = before + bytes == in->expected.bytes ? bytes : bytes / unit * unit;
  size_t elements = bytes_in_memory(codec, whole) / in_memory;
  const char* theirs = staging_->data();
  uint64_t at = bytes_in_memory(codec, before);
  for (size_t i = 0; elements > 0; ++i) {
    const Landing& landing = in->landings[i];
    if (at >= landing.bytes) {
      at -= landing.bytes;
      continue;
    }
    const size_t step = std::min<size_t>(elements, (landing.bytes - at) / in_memory);
    use(*in, landing, at, theirs, step);
    theirs += coded ? coded_bytes(codec, step) : step * in_memory;
    elements -= step;
    at = 0;
  }
  c->in_done += static_cast<uint32_t>(whole);
  c->left = bytes - whole;
  std::memcpy(c->left_bytes.data(), theirs, c->left);
}

void Link::use(const Incoming& in, const Landing& landing, size_t at, const char* theirs, size_t elements) const {
  const Arithmetic& a = in.arithmetic;
  const WireCodec codec = codec_of(in.expected);
  char* const dst = landing.dst + at;
  if (landing.src == nullptr) {
    decode_floats(codec, dst, theirs, elements);
    return;
  }
  const char* const own = landing.src + at;
  if (codec != WireCodec::kNone) {
    char* const residual = landing.residual == nullptr ? nullptr : landing.residual + at;
    add_encoded(codec, dst, own, theirs, residual, elements, a.divisor, a.final);
    return;
  }
  const std::array<const void*, 2> operands = {a.theirs_first ? theirs : own, a.theirs_first ? own : theirs};
  void* const sum = dst;
  reduce(a.dtype, a.op, &sum, 1, operands.data(), 2, elements, a.divisor);
}

}  // namespace ddl
