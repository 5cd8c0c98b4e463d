#include "engine/links.h"

#include <string>

#include "base/error.h"
#include "transport/factory.h"

namespace ddl {

void Links::add_connection(int peer, int stream, UniqueFd fd) {
  auto link = std::make_unique<Link>(peer, make_tcp_endpoint(peer, std::move(fd)));
  std::lock_guard<std::mutex> lock(mutex_);
  const Key key{peer, stream};
  if (links_.count(key) != 0 || !arrived_.emplace(key, std::move(link)).second) {
    throw Error(ErrorKind::kProtocolError,
                "rank " + std::to_string(peer) + " connected twice for stream " + std::to_string(stream));
  }
  waiting_.store(arrived_.size(), std::memory_order_release);
}

bool Links::connected(int peer, int stream) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return neighbourhood_.board(peer) != nullptr || links_.count({peer, stream}) + arrived_.count({peer, stream}) != 0;
}

void Links::adopt(LaneId lane) {
  if (waiting_.load(std::memory_order_acquire) == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto it = arrived_.begin(); it != arrived_.end();) {
    if (lane_of_slot(it->first.second / kMaxChannels) != lane) {
      ++it;
      continue;
    }
    links_[it->first] = std::move(it->second);
    it = arrived_.erase(it);
  }
  waiting_.store(arrived_.size(), std::memory_order_release);
}

Link* Links::find(int peer, int stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = links_.find({peer, stream});
  if (found != links_.end()) return found->second.get();
  if (neighbourhood_.board(peer) == nullptr) return nullptr;
  auto& link = links_[{peer, stream}];
  const auto lane = static_cast<size_t>(lane_of_slot(stream / kMaxChannels));
  Board *mine = neighbourhood_.mine(), *theirs = neighbourhood_.board(peer);
  link =
      std::make_unique<Link>(peer, make_shm_endpoint({neighbourhood_.memory(peer), mine->ring_offset(peer, stream),
                                                      theirs->ring_offset(rank_, stream), &mine->lanes[lane].sleeping,
                                                      &theirs->lanes[lane].sleeping}));
  return link.get();
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

void Links::close() {
  std::lock_guard<std::mutex> lock(mutex_);
  arrived_.clear();
  for (auto it = links_.begin(); it != links_.end();) {
    it = it->second->poll_fd() >= 0 ? links_.erase(it) : std::next(it);
  }
}

}  // namespace ddl
