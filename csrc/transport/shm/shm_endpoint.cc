#include "transport/shm/shm_endpoint.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "base/error.h"
#include "base/wake.h"
#include "memory/arena.h"

namespace ddl {

ShmEndpoint::ShmEndpoint(const ShmMeetingPlace& place)
    : place_(place), out_(static_cast<ByteRing*>(Arena::process().allocate(sizeof(ByteRing), 128))) {
  new (&out_->head) std::atomic<uint64_t>(0);
  new (&out_->tail) std::atomic<uint64_t>(0);
  place_.my_offset->store(Arena::process().offset(out_), std::memory_order_release);
  wake_peer();
}

ShmEndpoint::~ShmEndpoint() { Arena::process().free(out_); }

void ShmEndpoint::wake_peer() {
  full_fence(place_.my_sleeping);
  wake_if_sleeping(place_.peer_sleeping);
}

size_t ShmEndpoint::write(const iovec* parts, int n) {
  const uint64_t start = out_->head.load(std::memory_order_relaxed);  // only this side writes it
  const uint64_t room = ByteRing::kCapacity - (start - out_->tail.load(std::memory_order_acquire));
  uint64_t head = start;
  for (int i = 0; i < n && head - start < room; ++i) {
    const char* from = static_cast<const char*>(parts[i].iov_base);
    size_t remaining = std::min<uint64_t>(parts[i].iov_len, room - (head - start));
    while (remaining > 0) {
      const size_t at = head % ByteRing::kCapacity;
      const size_t run = std::min(remaining, ByteRing::kCapacity - at);
      std::memcpy(out_->data + at, from, run);
      from += run;
      head += run;
      remaining -= run;
    }
  }
  if (head == start) return 0;
  out_->head.store(head, std::memory_order_release);
  wake_peer();
  return head - start;
}

size_t ShmEndpoint::read(const iovec* parts, int n) {
  if (in_ == nullptr) {
    const uint64_t offset = place_.peer_offset->load(std::memory_order_acquire);
    if (offset == 0) return 0;
    if (!place_.peer->holds(offset, sizeof(ByteRing), alignof(ByteRing))) {
      throw Error(ErrorKind::kProtocolError,
                  "a peer posted a ring of messages that does not lie in its shared memory");
    }
    in_ = reinterpret_cast<ByteRing*>(place_.peer->at(offset));
  }
  const uint64_t start = in_->tail.load(std::memory_order_relaxed);  // only this side writes it
  const uint64_t have = in_->head.load(std::memory_order_acquire) - start;
  uint64_t tail = start;
  for (int i = 0; i < n && tail - start < have; ++i) {
    char* to = static_cast<char*>(parts[i].iov_base);
    size_t remaining = std::min<uint64_t>(parts[i].iov_len, have - (tail - start));
    while (remaining > 0) {
      const size_t at = tail % ByteRing::kCapacity;
      const size_t run = std::min(remaining, ByteRing::kCapacity - at);
      std::memcpy(to, in_->data + at, run);
      to += run;
      tail += run;
      remaining -= run;
    }
  }
  if (tail == start) return 0;
  in_->tail.store(tail, std::memory_order_release);
  wake_peer();
  return tail - start;
}

}  // namespace ddl
