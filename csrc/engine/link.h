// Messages to and from one peer on one stream: puts headers in front, checks those that come, and reduces what
// arrives while it is hot.
//
// Not thread-safe: belongs to whoever drives its stream. Messages are sent, and received, in the order they were
// posted; memory given to `send` is read until `sent` says so.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <stdexcept>
#include <vector>

#include "engine/descriptor.h"
#include "reduce/reduce.h"
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
  size_t bytes;
};

struct Arithmetic {
  DType dtype = DType::kUInt8;
  ReduceOp op = ReduceOp::kSum;
  uint64_t divisor = 1;
  bool theirs_first = false;  // operands go in ascending rank order, so that all ranks get the same bits
};

class Link {
 public:
  Link(int peer, std::unique_ptr<Endpoint> endpoint) : peer_(peer), endpoint_(std::move(endpoint)) {}

  // Both return the number of the message, to ask after.
  uint64_t send(const Header& header, const std::vector<iovec>& parts);
  uint64_t receive(const Header& expected, const std::vector<Landing>& landings, const Arithmetic& arithmetic);
  bool sent(uint64_t message) const { return message < sent_; }
  bool received(uint64_t message) const { return message < received_; }

  // Moves what can be moved now; returns whether anything did. Throws LostPeer, Mismatch, Error(kProtocolError).
  bool progress();
  bool sending() const { return !outgoing_.empty(); }
  bool receiving() const { return !incoming_.empty(); }
  // What this rank has sent here: messages that carry data, and their bytes. Any thread may ask.
  uint64_t messages() const { return messages_.load(std::memory_order_relaxed); }
  uint64_t payload() const { return payload_.load(std::memory_order_relaxed); }
  int peer() const { return peer_; }
  int poll_fd() const { return endpoint_->poll_fd(); }
  // Forgets what is under way (after a failure), so that no memory of the operations is touched again.
  void abandon();

 private:
  struct Outgoing {
    HeaderBytes header;
    std::vector<iovec> parts;
    size_t next_part = 0;  // 0: the header; part i is parts[i - 1]
    size_t offset = 0;     // within that part
  };
  struct Incoming {
    Header expected;
    std::vector<Landing> landings;
    Arithmetic arithmetic;
    bool reduces = false;
    HeaderBytes header;
    size_t header_bytes = 0;  // of the header, already here
    uint64_t bytes = 0;       // of the payload, already here
    size_t landing = 0;       // the one that is being filled
    size_t offset = 0;        // within it
  };

  bool progress_outgoing();
  bool progress_incoming();
  void check_header(Incoming* in);
  void land(Incoming* in, size_t bytes);             // bytes that were read in place
  size_t reduce_staged(Incoming* in, size_t bytes);  // returns what is left over: part of an element

  const int peer_;
  const std::unique_ptr<Endpoint> endpoint_;
  std::deque<Outgoing> outgoing_;
  std::deque<Incoming> incoming_;
  std::vector<char> staging_;  // arriving bytes that are to be reduced
  size_t staged_ = 0;          // bytes of an incomplete element at its start
  uint64_t posted_sends_ = 0, sent_ = 0;
  uint64_t posted_receives_ = 0, received_ = 0;
  std::atomic<uint64_t> messages_{0}, payload_{0};
};

}  // namespace ddl
