#include "transport/factory.h"

#include "transport/rails/rails_endpoint.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"

namespace ddl {

std::unique_ptr<MeasuredEndpoint> make_tcp_endpoint(int peer, UniqueFd fd, bool rail) {
  return std::make_unique<TcpEndpoint>(peer, std::move(fd), rail ? kOneOfRails : kOneConnection);
}

std::unique_ptr<Rails> make_rails(int peer, size_t rails, RailNews tell) {
  return std::make_unique<RailsEndpoint>(peer, rails, std::move(tell));
}

std::unique_ptr<Endpoint> make_shm_endpoint(const ShmMeetingPlace& place) {
  return std::make_unique<ShmEndpoint>(place);
}

}  // namespace ddl
