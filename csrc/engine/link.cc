#include "engine/link.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"

namespace ddl {

namespace {

// Messages up to here are copied, so that nobody waits until an endpoint has released their memory.
constexpr uint64_t kCopiedMessage = 64 << 10;

Descriptor descriptor_of(const SegmentHeader& h) {
  return descriptor_from(h.signature, h.count, h.sequence, h.history);
}

WireCodec codec_of(const SegmentHeader& h) { return static_cast<WireCodec>(h.codec); }

// The length of all segments but a message's last. No coded unit is cut.
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

bool Link::open() const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [](const auto& c) { return !c->ended && c->endpoint->open(); });
}

bool Link::silent(Nanoseconds limit) const {
  return std::any_of(connections_.begin(), connections_.end(),
                     [limit](const auto& c) { return c->endpoint->silent(limit); });
}

bool Link::finished() {
  return std::all_of(connections_.begin(), connections_.end(), [](const auto& c) { return c->endpoint->finished(); });
}

uint64_t Link::send(const SegmentHeader& header, const std::vector<iovec>& parts, char* residual) {
  const uint64_t number = outgoing_.end();
  Outgoing& out = outgoing_.push();
  out.header = header;
  out.header.step = static_cast<uint32_t>(number);
  out.parts = parts;
  out.residual = residual;
  out.cut = 0;
  out.part = out.in_part = 0;
  const uint64_t segment = segment_bytes(codec_of(header));
  out.unreleased = std::max<uint64_t>(1, (header.bytes + segment - 1) / segment);
  out.in_place = header.bytes > kCopiedMessage && codec_of(header) == WireCodec::kNone;
  if (header.bytes > 0) {
    count(&traffic_->messages, uint64_t{1});
    count(&traffic_->bytes, header.bytes);
  }
  return number;
}

uint64_t Link::receive(const SegmentHeader& expected, const std::vector<Landing>& landings,
                       const Arithmetic& arithmetic) {
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
  bool moved = false;
  for (const auto& connection : connections_) moved |= connection->endpoint->progress();
  moved |= progress_outgoing();
  for (const auto& connection : connections_) moved |= progress_incoming(connection.get());
  return release() || moved;
}

bool Link::progress_outgoing() {
  if (!may_send()) return false;
  bool moved = false;
  // Give each connection that is ready a segment, then begin again, so that none is left out. Each message begins
  // with the next connection, so that messages of one segment use all connections, too.
  const size_t n = connections_.size();
  for (bool sent = true; sent;) {
    sent = false;
    const uint64_t begin = cutting_;
    for (size_t i = 0; i < n; ++i) sent |= progress_outgoing(connections_[(begin + i) % n].get());
    moved |= sent;
  }
  const auto sending = [](const auto& connection) { return !connection->out.done(); };
  const bool more = std::any_of(connections_.begin(), connections_.end(), sending);
  if (moved && turn_ != nullptr) turn_->moved(this, more);
  return moved;
}

// Forgets the messages that the endpoints have released. Returns whether there were any.
bool Link::release() {
  while (!unreleased_.empty() && unreleased_.front().connection->endpoint->released() >= unreleased_.front().end) {
    --outgoing_[unreleased_.front().message].unreleased;
    unreleased_.pop();
  }
  const uint64_t before = outgoing_.first();
  while (!outgoing_.empty() && outgoing_.front().unreleased == 0) outgoing_.pop();
  return outgoing_.first() != before;
}

void Link::abandon() {
  outgoing_.clear();
  incoming_.clear();
  unreleased_.clear();
  cutting_ = outgoing_.end();
  if (turn_ != nullptr) turn_->give_up(this);
  for (const auto& connection : connections_) {
    connection->endpoint->abandon();
    connection->out.clear();
    connection->placed = false;
  }
}

void Link::poll_fds(Polled* fds, bool announcement) const {
  for (const auto& connection : connections_) {
    const bool writing = !connection->out.done() && may_send();
    if (!connection->ended) connection->endpoint->poll_fds(fds, announcement || !incoming_.empty(), writing);
  }
}

// --- sending ------------------------------------------------------------------------------------------------------

// Gives the connection the next segment, if there is one.
bool Link::cut_segment(Connection* c) {
  if (cutting_ == outgoing_.end()) return false;
  Outgoing& out = outgoing_[cutting_];
  SegmentHeader header = out.header;
  header.offset = out.cut;
  header.length = static_cast<uint32_t>(std::min(segment_bytes(codec_of(header)), header.bytes - out.cut));
  c->out_message = cutting_;
  c->out.begin(header);
  const WireCodec codec = codec_of(header);
  size_t in_memory = bytes_in_memory(codec, header.length);
  char* encoded = nullptr;
  if (codec != WireCodec::kNone) {
    if (c->encoded.size() < header.length) c->encoded.resize(kSegmentBytes);
    encoded = c->encoded.data();
    c->out.append(encoded, header.length);
  }
  while (in_memory > 0) {
    const iovec& part = out.parts[out.part];
    const size_t step = std::min(in_memory, part.iov_len - out.in_part);
    char* const from = static_cast<char*>(part.iov_base) + out.in_part;
    if (codec == WireCodec::kNone) {
      c->out.append(from, step);
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
  if (out.cut == out.header.bytes) ++cutting_;
  return true;
}

// Writes up to the end of a segment.
bool Link::progress_outgoing(Connection* c) {
  if (c->out.done() && !cut_segment(c)) return false;
  const size_t bytes = c->out.write(c->endpoint.get(), outgoing_[c->out_message].in_place);
  c->written += bytes;
  if (c->out.done()) {
    unreleased_.push() = {c, c->written, c->out_message};
    release();
  }
  return bytes > 0;
}

// --- receiving ----------------------------------------------------------------------------------------------------

void Link::check_header(const Incoming& in, const SegmentHeader& got) const {
  const SegmentHeader& want = in.expected;
  const bool alike = descriptor_of(got) == descriptor_of(want);
  // Over one connection, messages come in order. If they do not, the peer uses more connections than this rank.
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
  const auto text = [](const SegmentHeader& h) {
    return "message " + std::to_string(h.step) + " of piece " + std::to_string(h.turn) + " (" +
           std::to_string(h.bytes) + " bytes, codec " + std::to_string(h.codec) + ")";
  };
  throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer_) + " sent " + text(got) + ", bytes " +
                                             std::to_string(got.offset) + " to " +
                                             std::to_string(got.offset + got.length) + ", where " + text(want) +
                                             " was due; do all ranks use the same DDL settings?");
}

// Finds the message of the segment whose header has come. False if this rank does not expect it yet.
bool Link::place(Connection* c) {
  SegmentHeader got;
  if (!c->in_header.parse(&got)) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer_) +
                                               " sent bytes that are not a message of this version of DDL; "
                                               "do all ranks run the same version?");
  }
  const uint64_t first = incoming_.first();
  const uint32_t ahead = got.step - static_cast<uint32_t>(first);
  const bool impossible = single_ ? ahead != 0 : ahead >= uint32_t{1} << 31;  // check_header throws
  const uint64_t message = impossible ? first : first + ahead;
  if (!incoming_.has(message)) return false;
  check_header(incoming_[message], got);
  c->in_message = message;
  c->in_offset = got.offset;
  c->in_length = got.length;
  c->in_done = 0;
  c->partial = 0;
  incoming_[message].begun = true;
  return c->placed = true;
}

// Appends where the segment's next bytes go.
size_t Link::prepare_read(Connection* c, Incoming* in, uint32_t length, std::vector<iovec>* parts) {
  const size_t missing = length - c->in_done - c->partial;
  if (missing == 0) return 0;
  if (in->staged) {
    std::memcpy(staging_->data(), c->partial_bytes.data(), c->partial);
    parts->push_back({staging_->data() + c->partial, missing});
    return missing;
  }
  uint64_t skip = c->in_offset + c->in_done;
  size_t remaining = missing;
  for (size_t i = 0; remaining > 0 && parts->size() < kMaxParts; ++i) {
    const Landing& landing = in->landings[i];
    if (skip >= landing.bytes) {
      skip -= landing.bytes;
      continue;
    }
    const size_t step = std::min<uint64_t>(remaining, landing.bytes - skip);
    parts->push_back({landing.dst + skip, step});
    remaining -= step;
    skip = 0;
  }
  return missing - remaining;
}

// If there are several connections, one that ends between two segments may have brought all that it was to bring.
// While others are still being made, the peer may have sent the rest over them and ended.
size_t Link::read(Connection* c) {
  try {
    return c->endpoint->read(parts_.data(), static_cast<int>(parts_.size()));
  } catch (const LostPeer&) {
    c->ended = true;
    const auto open = [](const std::unique_ptr<Connection>& other) { return !other->ended; };
    const bool more = connections_.size() < expected_ || std::any_of(connections_.begin(), connections_.end(), open);
    if (c->in_header.begun() || !more) throw;
    return 0;
  }
}

bool Link::progress_incoming(Connection* c) {
  bool moved = false;
  while (!incoming_.empty() && !c->ended) {
    // Never read a byte beyond this segment: what follows may belong elsewhere.
    parts_.clear();
    if (!c->in_header.complete()) {
      parts_.push_back(c->in_header.rest());
      if (single_) {
        // Only one segment can be next, so read its payload together with its header.
        Incoming& in = incoming_.front();
        c->in_offset = in.arrived;
        c->in_done = 0;
        c->partial = 0;
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
      bytes = c->in_header.take(bytes);
      if (!c->in_header.complete()) continue;
      if (!c->placed && !place(c)) return moved;
    }
    arrive(c, bytes);
  }
  return moved;
}

bool Link::announced() {
  if (!incoming_.empty()) return false;
  for (const auto& connection : connections_) {
    HeaderReader<SegmentHeader>& header = connection->in_header;
    if (!header.complete() && !connection->ended) {
      parts_.assign(1, header.rest());
      try {
        header.take(connection->endpoint->read(parts_.data(), 1));
      } catch (const LostPeer&) {
        connection->ended = true;
      }
    }
    if (header.complete()) return true;
  }
  return false;
}

void Link::arrive(Connection* c, size_t bytes) {
  Incoming& in = incoming_[c->in_message];
  if (in.staged) {
    take_staged(c, &in, c->partial + bytes);
  } else {
    c->in_done += static_cast<uint32_t>(bytes);
  }
  if (c->in_done < c->in_length) return;
  in.arrived += c->in_length;
  c->in_header.restart();
  c->placed = false;
  while (!incoming_.empty() && incoming_.front().begun &&
         incoming_.front().arrived == incoming_.front().expected.bytes) {
    incoming_.pop();
  }
}

// `bytes` are in the staging. An incomplete element or coded unit at their end is kept for the next call.
void Link::take_staged(Connection* c, Incoming* in, size_t bytes) {
  const WireCodec codec = codec_of(in->expected);
  const bool coded = codec != WireCodec::kNone;
  const size_t in_memory = element_size(in->arithmetic.dtype), unit = coded ? unit_of(codec).bytes : in_memory;
  const uint64_t before = c->in_offset + c->in_done;
  const size_t whole = before + bytes == in->expected.bytes ? bytes : bytes / unit * unit;
  size_t elements = bytes_in_memory(codec, whole) / in_memory;
  const char* coming = staging_->data();
  uint64_t at = bytes_in_memory(codec, before);
  for (size_t i = 0; elements > 0; ++i) {
    const Landing& landing = in->landings[i];
    if (at >= landing.bytes) {
      at -= landing.bytes;
      continue;
    }
    const size_t step = std::min<size_t>(elements, (landing.bytes - at) / in_memory);
    use(*in, landing, at, coming, step);
    coming += coded ? coded_bytes(codec, step) : step * in_memory;
    elements -= step;
    at = 0;
  }
  c->in_done += static_cast<uint32_t>(whole);
  c->partial = bytes - whole;
  std::memcpy(c->partial_bytes.data(), coming, c->partial);
}

void Link::use(const Incoming& in, const Landing& landing, size_t at, const char* coming, size_t elements) const {
  const Arithmetic& a = in.arithmetic;
  const WireCodec codec = codec_of(in.expected);
  char* const dst = landing.dst + at;
  if (landing.src == nullptr) {
    decode_floats(codec, dst, coming, elements);
    return;
  }
  const char* const own = landing.src + at;
  if (codec != WireCodec::kNone) {
    char* const residual = landing.residual == nullptr ? nullptr : landing.residual + at;
    add_encoded(codec, dst, own, coming, residual, elements, a.divisor, a.final);
    return;
  }
  const std::array<const void*, 2> operands = {a.peer_first ? coming : own, a.peer_first ? own : coming};
  void* const sum = dst;
  reduce(a.dtype, a.op, &sum, 1, operands.data(), 2, elements, a.divisor);
}

}  // namespace ddl
