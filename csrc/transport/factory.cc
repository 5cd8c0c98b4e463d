#include "transport/factory.h"

#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"

namespace ddl {

std::unique_ptr<Endpoint> make_tcp_endpoint(int peer, int fd) { return std::make_unique<TcpEndpoint>(peer, fd); }

std::unique_ptr<Endpoint> make_shm_endpoint(const ShmMeetingPlace& place) {
  return std::make_unique<ShmEndpoint>(place);
}

}  // namespace ddl
