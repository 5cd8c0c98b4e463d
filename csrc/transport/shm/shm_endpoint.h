// An endpoint made of two byte rings in shared memory, for plans that send and receive between ranks of one host.
//
// Each side has the ring that it writes in its own arena, and posts the offset on its board. The other side attaches
// when it first looks. A ring has one producer, one consumer and two counters, each on its own cache line. The
// producer releases `head` and the consumer acquires it; `tail` is the other way round.
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/peer_memory.h"
#include "transport/endpoint.h"
#include "transport/factory.h"

namespace ddl {

struct ByteRing {
  static constexpr size_t kCapacity = size_t{256} << 10;
  alignas(128) std::atomic<uint64_t> head;  // bytes ever written
  alignas(128) std::atomic<uint64_t> tail;  // bytes ever read
  alignas(128) char data[kCapacity];
};

class ShmEndpoint final : public Endpoint {
 public:
  explicit ShmEndpoint(const ShmMeetingPlace& place);
  ~ShmEndpoint() override;

  size_t write(const iovec* parts, int n) override;
  size_t read(const iovec* parts, int n) override;
  bool polled() const override { return false; }
  void poll_fds(Polled*, bool, bool) const override {}
  bool open() const override { return false; }

 private:
  void wake_peer();

  const ShmMeetingPlace place_;
  ByteRing* const out_;
  ByteRing* in_ = nullptr;  // null until the peer has published it
};

}  // namespace ddl
