// The links of one communicator, by peer and stream. Ranks that share memory are linked on first use; connections to
// the others are brought by Python (ddl/bootstrap/connect.py), from any thread, and picked up by the driving thread.
#pragma once

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
  // Null if the connection has not come yet. The link belongs to the thread that drives the stream.
  Link* find(int peer, int stream);
  // Messages with data, and bytes, that this rank has sent through links.
  std::pair<uint64_t, uint64_t> traffic() const;
  // Closes connections. Shared-memory rings stay until destruction: a slower peer may still be reading them.
  void close();

 private:
  const int rank_;
  const Neighbourhood& neighbourhood_;
  mutable std::mutex mutex_;  // guards the map, not the links
  std::map<std::pair<int, int>, std::unique_ptr<Link>> links_;
};

}  // namespace ddl
