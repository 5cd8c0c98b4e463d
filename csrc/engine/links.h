// The links of one communicator, by peer and stream. A link to a rank that shares memory is made on first use. Python
// brings the connections to the others (ddl/_comm/connector.py, ddl/bootstrap/agent.py), from any thread. They wait
// until the driver of their lane adopts them, between two looks at its operations: so all operations see the same
// links, and none overtakes another on a link that has just come.
#pragma once

#include <array>
#include <atomic>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/failure.h"
#include "engine/link.h"
#include "engine/neighbourhood.h"
#include "transport/factory.h"

namespace ddl {

constexpr int kMostConnections = 16;  // of a stream to a peer

class Links {
 public:
  // `connections`: of each stream of the large lane to each peer. Streams of other lanes have one.
  // `checksums`: what goes over TCP has them, unless it is encrypted.
  Links(int rank, int connections, bool checksums, const Neighbourhood& neighbourhood, Recorder* recorder,
        Failure* failure);
  // With several rails, every stream has one connection on each instead. Call before there is any connection.
  void set_rails(int rails) { rails_ = rails; }
  // Takes peers for silent from which nothing has come for so long though they were sent something. At first, none.
  void set_silence(Nanoseconds limit) { silence_.store(limit, std::memory_order_relaxed); }

  // Takes `fd` over, and what encrypts it (or null). `number`: stream + n * kStreams, for the n-th connection of a
  // stream, or for the n-th rail. Throws kProtocolError if there is one already.
  void add_connection(int peer, int number, UniqueFd fd, std::shared_ptr<RecordSession> encrypted);
  bool connected(int peer, int number) const;
  // The driver of a lane calls this before it looks at its operations.
  void adopt(LaneId lane);
  // Looks after all links: what they sent may have been lost with a rail, or not get through at all. The driver of
  // the lane calls this. Returns whether a peer has fallen silent since the last call.
  bool tend(LaneId lane);
  // A connection to the peer cannot be made, since its host does not answer; or it can again.
  void note_unreachable(int peer, bool unreachable);
  // The peers to which nothing gets through, as was seen last. See Endpoint::silent. For any thread.
  std::vector<int> silent() const;
  // Whether a link of the large lane has a turn, which others may take after Turn::kPatience. For the lane's driver.
  bool turn_taken() const;
  // Null if the connection has not come yet. The link belongs to the driver of the stream.
  Link* find(int peer, int stream);
  // Waits, up to a second, until the peers' kernels have what was sent. After the last operation.
  void finish();
  // Closes connections. Rings in shared memory stay until destruction: a slow peer may still read them.
  void close();

 private:
  using Key = std::pair<int, int>;  // peer, stream
  struct Arrived {
    Key key;
    int rail = 0;
    std::unique_ptr<MeasuredEndpoint> endpoint;
  };
  Link* link(const Key& key) DDL_REQUIRES(mutex_);
  std::vector<std::pair<Key, Link*>> polled(LaneId lane) const;
  bool listen(LaneId lane);
  void add_rail(const Key& key, int number, std::unique_ptr<MeasuredEndpoint> rail) DDL_REQUIRES(mutex_);

  const int rank_, connections_;
  const bool checksums_;
  int rails_ = 1;
  std::atomic<Nanoseconds> silence_{std::numeric_limits<Nanoseconds>::max()};
  const Neighbourhood& neighbourhood_;
  Recorder* const recorder_;
  Failure* const failure_;                             // is told of rails
  std::array<Staging, kLanes> staging_;                // used by the drivers of the lanes
  std::array<std::atomic<size_t>, kLanes> waiting_{};  // how many in arrived_, by lane
  std::map<int, Turn> turns_;                          // by peer; belong to the driver of the large lane
  mutable Mutex mutex_;
  std::map<Key, std::unique_ptr<Link>> links_
      DDL_GUARDED_BY(mutex_);                                // each link itself belongs to its lane's driver
  std::map<Key, Rails*> over_rails_ DDL_GUARDED_BY(mutex_);  // the endpoints of links that go over several rails
  std::vector<Arrived> arrived_ DDL_GUARDED_BY(mutex_);
  std::set<Key> known_ DDL_GUARDED_BY(mutex_);  // peer, number of the connection
  std::array<Nanoseconds, kLanes> listened_{};  // when it was last looked which are silent; used by lanes' drivers
  std::map<Key, Nanoseconds> silent_ DDL_GUARDED_BY(mutex_);  // until when; stream -1: there is no connection
};

}  // namespace ddl
