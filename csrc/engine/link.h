// Messages to and from one peer on one stream. Cuts them into segments, sends each over a connection that is ready,
// checks the segments that come, and reduces what arrives while it is in the cache.
//
// Not thread-safe: belongs to the driver of its stream. Messages complete in the order in which they were posted.
// `send` may read its memory until `sent` is true.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/growing_ring.h"
#include "engine/descriptor.h"
#include "engine/recorder.h"
#include "engine/turn.h"
#include "reduce/reduce.h"
#include "reduce/wire_codec.h"
#include "transport/endpoint.h"
#include "transport/framing.h"
#include "wire/segment.h"

namespace ddl {

// The peer is at another operation than this rank.
class Mismatch : public std::runtime_error {
 public:
  Mismatch(int peer, const Descriptor& own_call, const Descriptor& peer_call)
      : std::runtime_error("mismatched call"), peer_(peer), own_call_(own_call), peer_call_(peer_call) {}
  int peer() const { return peer_; }
  const Descriptor& own_call() const { return own_call_; }
  const Descriptor& peer_call() const { return peer_call_; }

 private:
  int peer_;
  Descriptor own_call_, peer_call_;
};

// What to do with bytes that come: dst = bytes, or dst = src (op) bytes where src is given.
struct Landing {
  char* dst;
  const char* src;
  size_t bytes;              // in memory
  char* residual = nullptr;  // of the finished sum, if it is coded with error feedback
};

struct Arithmetic {
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  uint64_t divisor = 1;
  bool peer_first = false;  // operands go in ascending rank order, so that all ranks get the same bits
  bool final = false;       // the result is what all ranks are to have
};

// For bytes that cannot be read to where they belong. One per lane: its driver uses it between two system calls.
constexpr size_t kStagingBytes = kSegmentBytes + 64;
using Staging = std::array<char, kStagingBytes>;

class Link {
 public:
  // `connections`: how many there will be. `turn`: shared by the links to this peer, which send one after the other.
  // Null: this link sends at any time.
  // `traffic`: what its lane has sent to the peer.
  Link(int peer, size_t connections, Staging* staging, Turn* turn, Traffic* traffic)
      : peer_(peer),
        expected_(connections),
        single_(connections == 1),
        staging_(staging),
        turn_(turn),
        traffic_(traffic) {}
  void add(std::unique_ptr<Endpoint> endpoint);

  // Both return the number of the message, for `sent` and `received`. The caller sets `header.bytes` and
  // `header.codec`. If units of the codec hold several floats, the message has one part, or one landing. `residual`,
  // if not null, is as long as the message in memory.
  uint64_t send(const SegmentHeader& header, const std::vector<iovec>& parts, char* residual);
  uint64_t receive(const SegmentHeader& expected, const std::vector<Landing>& landings, const Arithmetic& arithmetic);
  bool sent(uint64_t message) const { return message < outgoing_.first(); }
  bool received(uint64_t message) const { return message < incoming_.first(); }

  // Whether the first bytes of a message have come that no `receive` is for. False once the peer has gone.
  bool announced();
  // Moves what can be moved now. Returns whether anything moved. Throws LostPeer, Mismatch, Error(kProtocolError).
  bool progress();
  int peer() const { return peer_; }
  // See Endpoint.
  bool polled() const { return !connections_.empty() && connections_.front()->endpoint->polled(); }
  bool open() const;
  // Over any connection: a segment that is lost there does not come over another.
  bool silent(Nanoseconds limit) const;
  // `announcement`: this rank waits for `announced`.
  void poll_fds(Polled* fds, bool announcement = false) const;
  bool finished();
  // After a failure: forgets what is under way, and never touches the operations' memory again.
  void abandon();

 private:
  struct Outgoing {
    SegmentHeader header;
    std::vector<iovec> parts;
    char* residual = nullptr;  // of the next float to code
    uint64_t cut = 0;          // bytes given to connections, on the wire
    size_t part = 0;           // the part with the next byte to give
    size_t in_part = 0;        // where in it that byte is
    uint64_t unreleased = 0;   // segments that the endpoints have not released
    bool in_place = false;     // endpoints may read its memory until they release it
  };
  struct Incoming {
    SegmentHeader expected;
    std::vector<Landing> landings;
    Arithmetic arithmetic;
    bool staged = false;   // it cannot be read to where it belongs
    bool begun = false;    // a segment has come
    uint64_t arrived = 0;  // bytes on the wire
  };
  // A connection works on one segment at a time in each direction.
  struct Connection {
    std::unique_ptr<Endpoint> endpoint;
    bool ended = false;  // the peer has closed it after a segment's end

    FramedWriter<SegmentHeader> out;
    uint64_t out_message = 0;
    uint64_t written = 0;       // bytes that the endpoint has taken so far
    std::vector<char> encoded;  // the segment as the codec writes it

    HeaderReader<SegmentHeader> in_header;
    bool placed = false;  // the segment's header fits the message that it belongs to
    uint64_t in_message = 0;
    uint64_t in_offset = 0;  // of the segment
    uint32_t in_length = 0;
    uint32_t in_done = 0;  // bytes of it that are where they belong
    size_t partial = 0;    // bytes of an incomplete element, or coded unit
    std::array<char, kMxBlock + 1> partial_bytes;
  };
  // A segment that an endpoint has taken and not released.
  struct Unreleased {
    const Connection* connection = nullptr;
    uint64_t end = 0;  // of its last byte among those that the endpoint has taken
    uint64_t message = 0;
  };

  bool release();
  bool may_send() const { return turn_ == nullptr || turn_->free_for(this); }
  bool progress_outgoing();
  bool progress_outgoing(Connection* c);
  bool cut_segment(Connection* c);
  bool progress_incoming(Connection* c);
  bool place(Connection* c);
  size_t read(Connection* c);
  size_t prepare_read(Connection* c, Incoming* in, uint32_t length, std::vector<iovec>* parts);
  void arrive(Connection* c, size_t bytes);
  void take_staged(Connection* c, Incoming* in, size_t bytes);
  void use(const Incoming& in, const Landing& landing, size_t at, const char* coming, size_t elements) const;
  void check_header(const Incoming& in, const SegmentHeader& got) const;

  const int peer_;
  const size_t expected_;
  const bool single_;
  Staging* const staging_;
  Turn* const turn_;
  Traffic* const traffic_;
  std::vector<std::unique_ptr<Connection>> connections_;  // a segment under way points into its connection
  Ring<Outgoing> outgoing_;
  Ring<Incoming> incoming_;
  Ring<Unreleased> unreleased_;
  uint64_t cutting_ = 0;      // the first message that is not all given to connections
  std::vector<iovec> parts_;  // reused by every read
};

}  // namespace ddl
