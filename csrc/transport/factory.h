// Makes endpoints. factory.cc is the only file that names the concrete transports.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "base/unique_fd.h"
#include "memory/peer_memory.h"
#include "transport/measured_endpoint.h"

namespace ddl {

class RecordSession;

// How bytes go over a TCP connection.
struct TcpManner {
  std::shared_ptr<RecordSession> encrypted;  // by this, or null
  bool checked = false;                      // with checksums, if they are not encrypted
  bool rail = false;                         // it is one of several connections that share a stream
};
// Takes over `fd`, a connected and authenticated TCP socket to `peer`.
std::unique_ptr<MeasuredEndpoint> make_tcp_endpoint(int peer, UniqueFd fd, TcpManner manner);

// A stream over several endpoints at once, which are added one after the other.
class Rails : public Endpoint {
 public:
  // `number`: of the rail.
  virtual void add(int number, std::unique_ptr<MeasuredEndpoint> rail) = 0;
};
// Takes the number of a rail that nothing goes over any more, while others are well (`works`: over which it goes
// again). `why` its connection has ended; empty: it is silent.
using RailNews = std::function<void(int number, bool works, const std::string& why)>;
// `rails`: how many there will be. `tell` is called by the thread that drives the stream.
std::unique_ptr<Rails> make_rails(int peer, size_t rails, RailNews tell);

// Words in the two ranks' boards: over them the rings of one stream find and wake each other.
struct ShmMeetingPlace {
  const PeerMemory* peer;
  std::atomic<uint64_t>* my_offset;
  std::atomic<uint64_t>* peer_offset;
  std::atomic<uint32_t>* my_sleeping;
  std::atomic<uint32_t>* peer_sleeping;
};
std::unique_ptr<Endpoint> make_shm_endpoint(const ShmMeetingPlace& place);

}  // namespace ddl
