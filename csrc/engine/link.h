// Messages to and from one peer on one stream: cuts them into segments, sends each over whichever connection is
// ready, checks those that come, and reduces what arrives while it is hot.
//
// Not thread-safe: belongs to whoever drives its stream. Messages are complete in the order in which they were
// posted; memory given to `send` is read until `sent` says so.
#pragma once

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "base/growing_ring.h"
#include "engine/descriptor.h"
#include "engine/turn.h"
#include "reduce/reduce.h"
#include "reduce/wire_codec.h"
#include "transport/endpoint.h"
#include "wire/header.h"

namespace ddl {

// The peer is at another operation than we are.
class Mismatch : public std::runtime_error {
 public:
  Mismatch(int peer, const Descriptor& mine, const Descriptor& theirs)
      : std::runtime_error("mismatched call"), peer_(peer), mine_(mine), theirs_(theirs) {}
  int peer() const { return peer_; }
  const Descriptor& mine() const { return mine_; }
  const Descriptor& theirs() const { return theirs_; }

 private:
  int peer_;
  Descriptor mine_, theirs_;
};

// What to do with arriving bytes: dst = them, or dst = src (op) them where src is given.
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
  bool theirs_first = false;  // operands go in ascending rank order, so that all ranks get the same bits
  bool final = false;         // the result is what all ranks are to have
};

// Where arriving bytes wait that cannot be read to where they belong. One per lane: whoever drives it uses it between
// two system calls.
constexpr size_t kStagingBytes = kSegmentBytes + 64;
using Staging = std::array<char, kStagingBytes>;

class Link {
 public:
  // `connections`: how many there will be. `turn`: of the links to this peer that send one after the other; null: all
  // at once.
  Link(int peer, size_t connections, Staging* staging, Turn* turn)
      : peer_(peer), expected_(connections), single_(connections == 1), staging_(staging), turn_(turn) {}
  void add(std::unique_ptr<Endpoint> endpoint);
  // One of `rails_in_all` rails, which together are the link's only connection.
  void add_rail(std::unique_ptr<Endpoint> rail, size_t rails_in_all);

  // Both return the number of the message, to ask after. `header.bytes` and `header.codec` are given by the caller.
  // Where units of the codec hold several floats, the message is one part, or one landing. `residual`, if not null,
  // is as long as the message in memory.
  uint64_t send(const Header& header, const std::vector<iovec>& parts, char* residual);
  uint64_t receive(const Header& expected, const std::vector<Landing>& landings, const Arithmetic& arithmetic);
  bool sent(uint64_t message) const { return message < outgoing_.first(); }
  bool received(uint64_t message) const { return message < incoming_.first(); }

  // Moves what can be moved now; returns whether anything did. Throws LostPeer, Mismatch, Error(kProtocolError).
  bool progress();
  // What this rank has sent here: messages that carry data, and their bytes. Any thread may ask.
  uint64_t messages() const { return messages_.load(std::memory_order_relaxed); }
  uint64_t payload() const { return payload_.load(std::memory_order_relaxed); }
  int peer() const { return peer_; }
  bool over_sockets() const { return !connections_.empty() && connections_.front()->endpoint->poll_fd() >= 0; }
  // Whether there is a connection whose end will tell that nothing more comes; none for a transport without.
  bool open() const { return rails_ != nullptr ? rails_->open() : over_sockets(); }
  // Descriptors to poll, and whether to wait for room as well; none for a transport without.
  void poll_fds(Polled* fds) const;
  // Whether the peer's kernel has all that was sent over rails; does what is due there. Throws LostPeer.
  bool finished() { return rails_ == nullptr || rails_->finished(); }
  // Forgets what is under way (after a failure), so that no memory of the operations is touched again.
  void abandon();

 private:
  struct Outgoing {
    Header header;
    std::vector<iovec> parts;
    char* residual = nullptr;  // of the first float that is not coded yet
    uint64_t cut = 0;          // bytes given to connections, on the wire
    size_t part = 0;           // the part that holds the first byte after those
    size_t in_part = 0;        // and where in it
    uint64_t written = 0;      // bytes that the transports have taken
    bool begun = false;
    bool kept = false;  // its memory is read until the peer has it
    uint64_t end = 0;   // of its last byte in the stream over rails
  };
  struct Incoming {
    Header expected;
    std::vector<Landing> landings;
    Arithmetic arithmetic;
    bool staged = false;   // cannot be read to where it belongs
    bool begun = false;    // a segment has come
    uint64_t arrived = 0;  // bytes on the wire
  };
  // A connection works on one segment at a time in each direction.
  struct Connection {
    std::unique_ptr<Endpoint> endpoint;
    bool ended = false;  // the peer has closed it, after its last segment

    bool sending = false;
    uint64_t out_message = 0;
    uint32_t out_length = 0;
    HeaderBytes out_header;
    std::vector<iovec> out_parts;  // what is left to be written
    size_t out_next = 0;
    std::vector<char> encoded;  // the segment as the codec writes it

    HeaderBytes in_header;
    size_t in_header_bytes = 0;
    bool placed = false;  // the segment's header was checked against the message that it belongs to
    uint64_t in_message = 0;
    uint64_t in_offset = 0;  // of the segment
    uint32_t in_length = 0;
    uint32_t in_done = 0;  // bytes of it that are where they belong
    size_t left = 0;       // bytes of an incomplete element, or coded unit
    std::array<char, kMxBlock + 1> left_bytes;
  };

  bool settle();
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
  void use(const Incoming& in, const Landing& landing, size_t at, const char* theirs, size_t elements) const;
  void check_header(const Incoming& in, const Header& got) const;

  const int peer_;
  const size_t expected_;
  const bool single_;
  Staging* const staging_;
  Turn* const turn_;
  std::vector<std::unique_ptr<Connection>> connections_;  // a segment under way points into its own
  Rails* rails_ = nullptr;                                // the only connection, if it is over rails
  Ring<Outgoing> outgoing_;
  Ring<Incoming> incoming_;
  uint64_t cutting_ = 0;      // the first message that is not all given to connections
  std::vector<iovec> parts_;  // reused by every read
  std::atomic<uint64_t> messages_{0}, payload_{0};
};

}  // namespace ddl
