#include "engine/links.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <string>

#include "base/clock.h"
#include "base/error.h"

namespace ddl {

namespace {

constexpr Nanoseconds kListening = kSecond;       // between two looks which peers are silent
constexpr Nanoseconds kRemembered = 3 * kSecond;  // what a look has shown: no lane that waits looks less often
constexpr Nanoseconds kUntilTold = std::numeric_limits<Nanoseconds>::max();

size_t lane_number(int stream) { return static_cast<size_t>(lane_of_slot(stream / kMaxChannels)); }

}  // namespace

Links::Links(int rank, int connections, bool checksums, const Neighbourhood& neighbourhood, Recorder* recorder,
             Failure* failure)
    : rank_(rank),
      connections_(connections),
      checksums_(checksums),
      neighbourhood_(neighbourhood),
      recorder_(recorder),
      failure_(failure) {}

void Links::add_connection(int peer, int number, UniqueFd fd, std::shared_ptr<RecordSession> encrypted) {
  if (number < 0 || number >= kStreams * kMostConnections) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(peer) + " made connection " +
                                               std::to_string(number) + ", which does not exist");
  }
  auto endpoint = make_tcp_endpoint(peer, std::move(fd), {std::move(encrypted), checksums_, rails_ > 1});
  const Lock lock(mutex_);
  if (!known_.emplace(peer, number).second) {
    throw Error(ErrorKind::kProtocolError,
                "rank " + std::to_string(peer) + " made connection " + std::to_string(number) + " twice");
  }
  const int stream = number % kStreams;
  arrived_.push_back({Key{peer, stream}, number / kStreams, std::move(endpoint)});
  waiting_[lane_number(stream)].fetch_add(1, std::memory_order_release);
}

bool Links::connected(int peer, int number) const {
  const Lock lock(mutex_);
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
                                  in_turn ? &turns_[key.first] : nullptr, recorder_->traffic(lane, key.first));
  }
  return link.get();
}

void Links::add_rail(const Key& key, int number, std::unique_ptr<MeasuredEndpoint> rail) {
  Rails*& rails = over_rails_[key];
  if (rails == nullptr) {
    const auto tell = [this, peer = key.first](int which, bool works, const std::string& why) {
      failure_->note_rail(peer, which, works, why);
    };
    auto endpoint = make_rails(key.first, static_cast<size_t>(rails_), tell);
    rails = endpoint.get();
    link(key)->add(std::move(endpoint));
  }
  rails->add(number, std::move(rail));
}

void Links::adopt(LaneId lane) {
  std::atomic<size_t>& waiting = waiting_[static_cast<size_t>(lane)];
  if (waiting.load(std::memory_order_acquire) == 0) return;
  const Lock lock(mutex_);
  for (size_t i = 0; i < arrived_.size();) {
    auto& [key, rail, endpoint] = arrived_[i];
    if (lane_number(key.second) != static_cast<size_t>(lane)) {
      ++i;
      continue;
    }
    if (rails_ > 1) {
      add_rail(key, rail, std::move(endpoint));
    } else {
      link(key)->add(std::move(endpoint));
    }
    arrived_.erase(arrived_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  waiting.store(0, std::memory_order_release);
}

Link* Links::find(int peer, int stream) {
  const Lock lock(mutex_);
  const Key key{peer, stream};
  const auto entry = links_.find(key);
  if (entry != links_.end()) return entry->second.get();
  if (neighbourhood_.board(peer) == nullptr) return nullptr;
  const size_t lane = lane_number(stream);
  Board *own_board = neighbourhood_.own_board(), *peer_board = neighbourhood_.board(peer);
  Link* const in_memory = link(key);
  in_memory->add(make_shm_endpoint({neighbourhood_.memory(peer), own_board->ring_offset(peer, stream),
                                    peer_board->ring_offset(rank_, stream), &own_board->lanes[lane].sleeping,
                                    &peer_board->lanes[lane].sleeping}));
  return in_memory;
}

bool Links::turn_taken() const {
  return std::any_of(turns_.begin(), turns_.end(), [](const auto& entry) { return entry.second.taken(); });
}

bool Links::tend(LaneId lane) {
  if (rails_ > 1) {
    for (const auto& [key, link] : polled(lane)) {
      try {
        link->progress();
      } catch (const std::runtime_error&) {
        // A lost peer, or a message that does not fit. An operation that waits for it will find the same.
      }
    }
  }
  return listen(lane);
}

std::vector<std::pair<Links::Key, Link*>> Links::polled(LaneId lane) const {
  const Lock lock(mutex_);
  std::vector<std::pair<Key, Link*>> links;
  for (const auto& [key, link] : links_) {
    if (lane_number(key.second) == static_cast<size_t>(lane) && link->polled()) links.emplace_back(key, link.get());
  }
  return links;
}

bool Links::listen(LaneId lane) {
  const Nanoseconds now = now_ns();
  Nanoseconds& listened = listened_[static_cast<size_t>(lane)];
  if (now - listened < kListening) return false;
  listened = now;
  const Nanoseconds limit = silence_.load(std::memory_order_relaxed);
  bool news = false;
  for (const auto& [key, link] : polled(lane)) {
    const bool silent = link->silent(limit);
    const Lock lock(mutex_);
    if (silent) {
      news |= silent_.insert_or_assign(key, now + kRemembered).second;
    } else {
      silent_.erase(key);
    }
  }
  return news;
}

void Links::note_unreachable(int peer, bool unreachable) {
  const Lock lock(mutex_);
  const Key key{peer, -1};
  if (unreachable) {
    silent_[key] = kUntilTold;
  } else {
    silent_.erase(key);
  }
}

std::vector<int> Links::silent() const {
  const Lock lock(mutex_);
  const Nanoseconds now = now_ns();
  std::vector<int> peers;
  for (const auto& [key, until] : silent_) {
    const int peer = key.first;
    if (now < until && (peers.empty() || peers.back() != peer)) peers.push_back(peer);  // they are in order
  }
  return peers;
}

void Links::finish() {
  if (rails_ < 2) return;  // over a single connection the kernel sends the rest
  for (int lane = 0; lane < kLanes; ++lane) adopt(static_cast<LaneId>(lane));
  const Lock lock(mutex_);
  const Nanoseconds limit = now_ns() + kSecond;
  for (const auto& entry : links_) {
    Link* const link = entry.second.get();
    try {
      while (!link->finished() && now_ns() < limit) ::usleep(500);
    } catch (const std::runtime_error&) {
      // The peer has ended: nobody waits for this.
    }
  }
}

void Links::close() {
  const Lock lock(mutex_);
  arrived_.clear();
  over_rails_.clear();
  for (auto it = links_.begin(); it != links_.end();) {
    it = it->second->polled() ? links_.erase(it) : std::next(it);
  }
}

}  // namespace ddl
