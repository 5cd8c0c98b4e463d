#include "engine/links.h"

#include <string>

#include "base/error.h"
#include "transport/factory.h"

namespace ddl {

void Links::add_connection(int peer, int stream, UniqueFd fd) {
  auto link = std::make_unique<Link>(peer, make_tcp_endpoint(peer, std::move(fd)));
  std::lock_guard<std::mutex> lock(mutex_);
  if (!links_.emplace(std::make_pair(peer, stream), std::move(link)).second) {
    throw Error(ErrorKind::kProtocolError,
                "rank " + std::to_string(peer) + " connected twice for stream " + std::to_string(stream));
  }
}

bool Links::connected(int peer, int stream) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return neighbourhood_.board(peer) != nullptr || links_.count({peer, stream}) != 0;
}

Link* Links::find(int peer, int stream) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto& link = links_[{peer, stream}];
  if (!link && neighbourhood_.board(peer) != nullptr) {
    const auto lane = static_cast<size_t>(lane_of_slot(stream / kMaxChannels));
    Board *mine = neighbourhood_.mine(), *theirs = neighbourhood_.board(peer);
    link =
        std::make_unique<Link>(peer, make_shm_endpoint({neighbourhood_.memory(peer), mine->ring_offset(peer, stream),
                                                        theirs->ring_offset(rank_, stream),
                                                        &mine->lanes[lane].sleeping, &theirs->lanes[lane].sleeping}));
  }
  Link* found = link.get();
  if (found == nullptr) links_.erase({peer, stream});
  return found;
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
  for (auto it = links_.begin(); it != links_.end();) {
    it = it->second->poll_fd() >= 0 ? links_.erase(it) : std::next(it);
  }
}

}  // namespace ddl
