#include "transport/factory.h"

#include <utility>

#include "transport/rails/rails_endpoint.h"
#include "transport/shm/shm_endpoint.h"
#include "transport/tcp/record_endpoint.h"
#include "transport/tcp/tcp_endpoint.h"
#include "wire/checksum_session.h"

namespace ddl {

std::unique_ptr<MeasuredEndpoint> make_tcp_endpoint(int peer, UniqueFd fd, TcpManner manner) {
  const BacklogLimits& limits = manner.rail ? kOneOfRails : kOneConnection;
  std::shared_ptr<RecordSession> records = std::move(manner.encrypted);
  if (records == nullptr && manner.checked) records = std::make_shared<ChecksumSession>(fd.get());
  if (records == nullptr) return std::make_unique<TcpEndpoint>(peer, std::move(fd), limits);
  return std::make_unique<RecordEndpoint>(peer, std::move(fd), limits, std::move(records));
}

std::unique_ptr<Rails> make_rails(int peer, size_t rails, RailNews tell) {
  return std::make_unique<RailsEndpoint>(peer, rails, std::move(tell));
}

std::unique_ptr<Endpoint> make_shm_endpoint(const ShmMeetingPlace& place) {
  return std::make_unique<ShmEndpoint>(place);
}

}  // namespace ddl
