// The links of one communicator, by peer and stream. Ranks that share memory are linked on first use; connections to
// the others are brought by Python (ddl/dialer.py, ddl/bootstrap/agent.py), from any thread, and wait until the
// driver of their lane adopts them: between two looks at its operations, so that all of them see the same links and
// none overtakes another on a link that has just come.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "base/unique_fd.h"
#include "engine/link.h"
#include "engine/neighbourhood.h"

namespace ddl {

class Links {
 public:
  Links(int rank, const Neighbourhood& neighbourhood) : rank_(rank), neighbourhood_(neighbourhood) {}

  // Takes `fd` over. Throws kInternalError if there is one already.
  void add_connection(int peer, int stream, UniqueFd fd);
  bool connected(int peer, int stream) const;
  // Called by the driver of a lane before it looks at its operations.
  void adopt(LaneId lane);
  // Null if the connection has not come yet. The link belongs to the thread that drives the stream.
  Link* find(int peer, int stream);
  // Messages with data, and bytes, that this rank has sent through links.
  std::pair<uint64_t, uint64_t> traffic() const;
  // Closes connections. Shared-memory rings stay until destruction: a slower peer may still be reading them.
  void close();

 private:
  const int rank_;
  const Neighbourhood& neighbourhood_;
  using Key = std::pair<int, int>;  // peer, stream
  std::atomic<size_t> waiting_{0};  // size of arrived_
  mutable std::mutex mutex_;        // guards the maps, not the links
  std::map<Key, std::unique_ptr<Link>> links_, arrived_;
};

}  // namespace ddl
