// A pair of byte rings in shared memory as an endpoint, for plans that send and receive between ranks of one host.
//
// Each side makes the ring it writes in its own arena and publishes the offset in its board; the other attaches when
// it first looks. One producer, one consumer, two counters, each on a cache line of its own. `head` is released by
// the producer and acquired by the consumer; `tail` the other way round.
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
  int poll_fd() const override { return -1; }

 private:
  void wake_peer();

  const ShmMeetingPlace place_;
  ByteRing* const out_;
  ByteRing* in_ = nullptr;  // null until the peer has published it
};

}  // namespace ddl
