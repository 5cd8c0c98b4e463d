#include "transport/factory.h"

#include "transport/rails/rails_endpoint.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"
#include "transport/tcp/tls_endpoint.h"

namespace ddl {

std::unique_ptr<MeasuredEndpoint> make_tcp_endpoint(int peer, UniqueFd fd, std::shared_ptr<TlsSession> tls,
                                                    bool rail) {
  const BacklogLimits& limits = rail ? kOneOfRails : kOneConnection;
  if (tls == nullptr) return std::make_unique<TcpEndpoint>(peer, std::move(fd), limits);
  return std::make_unique<TlsEndpoint>(peer, std::move(fd), limits, std::move(tls));
}

std::unique_ptr<Rails> make_rails(int peer, size_t rails, RailNews tell) {
  return std::make_unique<RailsEndpoint>(peer, rails, std::move(tell));
}

std::unique_ptr<Endpoint> make_shm_endpoint(const ShmMeetingPlace& place) {
  return std::make_unique<ShmEndpoint>(place);
}

}  // namespace ddl
