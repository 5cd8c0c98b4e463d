// The links of one communicator, by peer and stream. Ranks that share memory are linked on first use; connections to
// the others are brought by Python (ddl/_comm/connector.py, ddl/bootstrap/agent.py), from any thread, and wait until
// the driver of their lane adopts them: between two looks at its operations, so that all of them see the same links
// and none overtakes another on a link that has just come.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/unique_fd.h"
#include "engine/link.h"
#include "engine/neighbourhood.h"

namespace ddl {

constexpr int kMostConnections = 16;  // of a stream to a peer

class Links {
 public:
  // `connections`: of each stream of the large lane, to each peer; the others have one.
  Links(int rank, int connections, const Neighbourhood& neighbourhood);
  // Of several rails, every stream has one connection on each instead. Before there is any connection.
  void set_rails(int rails) { rails_ = rails; }

  // Takes `fd` over: the connection `number`, stream + n * kStreams for the n-th of a stream, or on the n-th rail.
  // Throws kProtocolError if there is one already.
  void add_connection(int peer, int number, UniqueFd fd);
  bool connected(int peer, int number) const;
  // Called by the driver of a lane before it looks at its operations.
  void adopt(LaneId lane);
  // Looks after links over several rails that nobody waits for just now: what they have sent may have been lost with
  // a rail. Called by the driver of the lane.
  void tend(LaneId lane);
  // Whether a link of the large lane has a turn, which is open to others after Turn::kPatience. For its driver.
  bool turn_taken() const;
  // Null if the connection has not come yet. The link belongs to the thread that drives the stream.
  Link* find(int peer, int stream);
  // Messages with data, and bytes, that this rank has sent through links.
  std::pair<uint64_t, uint64_t> traffic() const;
  // Waits, up to a second, until the peers' kernels have what was sent. After the last operation.
  void finish();
  // Closes connections. Shared-memory rings stay until destruction: a slower peer may still be reading them.
  void close();

 private:
  using Key = std::pair<int, int>;  // peer, stream
  Link* link(const Key& key);

  const int rank_, connections_;
  int rails_ = 1;
  const Neighbourhood& neighbourhood_;
  std::array<Staging, kLanes> staging_;                // used by the drivers of the lanes
  std::array<std::atomic<size_t>, kLanes> waiting_{};  // how many in arrived_, by lane
  mutable std::mutex mutex_;                           // guards what follows, not the links themselves
  std::map<int, Turn> turns_;                          // of the large lane, by peer
  std::map<Key, std::unique_ptr<Link>> links_;
  std::vector<std::pair<Key, std::unique_ptr<Endpoint>>> arrived_;
  std::set<Key> known_;  // peer, number of the connection
};

}  // namespace ddl
