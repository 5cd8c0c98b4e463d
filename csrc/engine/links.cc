#include "engine/links.h"

#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "transport/factory.h"

namespace ddl {

namespace {

size_t lane_number(int stream) { return static_cast<size_t>(lane_of_slot(stream / kMaxChannels)); }

}  // namespace

Links::Links(int rank, int connections, const Neighbourhood& neighbourhood)
    : rank_(rank), connections_(connections), neighbourhood_(neighbourhood) {}

void Links::add_connection(int peer, int number, UniqueFd fd) {
  if (number < 0 || number >= kStreams * kMostConnections) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer) + " made connection " +
                                               std::to_string(number) + ", which does not exist");
  }
  auto endpoint = make_tcp_endpoint(peer, std::move(fd), rails_ > 1);
  std::lock_guard<std::mutex> lock(mutex_);
  if (!known_.emplace(peer, number).second) {
    throw Error(ErrorKind::kProtocolError,
                "rank " + std::to_string(peer) + " made connection " + std::to_string(number) + " twice");
  }
  const int stream = number % kStreams;
  arrived_.emplace_back(Key{peer, stream}, std::move(endpoint));
  waiting_[lane_number(stream)].fetch_add(1, std::memory_order_release);
}

bool Links::connected(int peer, int number) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return neighbourhood_.board(peer) != nullptr || known_.count({peer, number}) != 0;
}

Link* Links::link(const Key& key) {
  std::unique_ptr<Link>& link = links_[key];
  if (link == nullptr) {
    const LaneId lane = lane_of_slot(key.second / kMaxChannels);
    const bool single = rails_ > 1 || lane != LaneId::kLarge || neighbourhood_.board(key.first) != nullptr;
    const size_t connections = single ? 1 : static_cast<size_t>(connections_);
    const bool in_turn = lane == LaneId::kLarge && neighbourhood_.board(key.first) == nullptr;
    link = std::make_unique<Link>(key.first, connections, &staging_[static_cast<size_t>(lane)],
                                  in_turn ? &turns_[key.first] : nullptr);
  }
  return link.get();
}

void Links::adopt(LaneId lane) {
  std::atomic<size_t>& waiting = waiting_[static_cast<size_t>(lane)];
  if (waiting.load(std::memory_order_acquire) == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (size_t i = 0; i < arrived_.size();) {
    auto& [key, endpoint] = arrived_[i];
    if (lane_number(key.second) != static_cast<size_t>(lane)) {
      ++i;
      continue;
    }
    if (rails_ > 1) {
      link(key)->add_rail(std::move(endpoint), static_cast<size_t>(rails_));
    } else {
      link(key)->add(std::move(endpoint));
    }
    arrived_.erase(arrived_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  waiting.store(0, std::memory_order_release);
}

Link* Links::find(int peer, int stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const Key key{peer, stream};
  const auto entry = links_.find(key);
  if (entry != links_.end()) return entry->second.get();
  if (neighbourhood_.board(peer) == nullptr) return nullptr;
  const size_t lane = lane_number(stream);
  Board *own = neighbourhood_.mine(), *theirs = neighbourhood_.board(peer);
  Link* const in_memory = link(key);
  in_memory->add(make_shm_endpoint({neighbourhood_.memory(peer), own->ring_offset(peer, stream),
                                    theirs->ring_offset(rank_, stream), &own->lanes[lane].sleeping,
                                    &theirs->lanes[lane].sleeping}));
  return in_memory;
}

bool Links::turn_taken() const {
  return std::any_of(turns_.begin(), turns_.end(), [](const auto& entry) { return entry.second.taken(); });
}

void Links::tend(LaneId lane) {
  if (rails_ < 2) return;
  std::vector<Link*> concerned;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [key, link] : links_) {
      if (lane_number(key.second) == static_cast<size_t>(lane) && link->over_sockets())
        concerned.push_back(link.get());
    }
  }
  for (Link* link : concerned) {
    try {
      link->progress();
    } catch (const std::runtime_error&) {
      // A lost peer, or a message that does not fit: who waits for it finds the same.
    }
  }
}

std::pair<uint64_t, uint64_t> Links::traffic() const {
  std::lock_guard<std::mutex> lock(mutex_);
  std::pair<uint64_t, uint64_t> total{0, 0};
  for (const auto& entry : links_) {
    total.first += entry.second->messages();
    total.second += entry.second->payload();
  }
  return total;
}

void Links::finish() {
  if (rails_ < 2) return;  // over a single connection the kernel goes on with it
  for (int lane = 0; lane < kLanes; ++lane) adopt(static_cast<LaneId>(lane));
  std::lock_guard<std::mutex> lock(mutex_);
  const Nanoseconds limit = now_ns() + kSecond;
  for (const auto& entry : links_) {
    Link* const link = entry.second.get();
    try {
      while (link->over_sockets() && !link->finished() && now_ns() < limit) ::usleep(500);
    } catch (const std::runtime_error&) {
      // The peer is gone: nobody waits for this.
    }
  }
}

void Links::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  arrived_.clear();
  for (auto it = links_.begin(); it != links_.end();) {
    it = it->second->over_sockets() ? links_.erase(it) : std::next(it);
  }
}

}  // namespace ddl
