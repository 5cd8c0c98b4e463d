#include "transport/tcp/record_endpoint.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace ddl {

namespace {

constexpr size_t kSentAtOnce = 64 << 10;  // bytes: one call of the kernel for each record takes a quarter longer

}  // namespace

// Makes a record of what lies behind the first `sealed_` bytes. False if nothing does.
bool RecordEndpoint::seal(const iovec* parts, int n) {
  size_t begin = sealed_;  // in the first part that is left
  for (; n > 0 && begin >= parts->iov_len; ++parts, --n) begin -= parts->iov_len;
  if (n == 0) return false;
  const char* from = static_cast<const char*>(parts->iov_base) + begin;
  size_t bytes = parts->iov_len - begin;
  if (bytes < record_.size()) {  // a header and what follows it go as one record
    bytes = 0;
    for (int i = 0; i < n && bytes < record_.size(); ++i, begin = 0) {
      const size_t step = std::min(parts[i].iov_len - begin, record_.size() - bytes);
      std::memcpy(record_.data() + bytes, static_cast<const char*>(parts[i].iov_base) + begin, step);
      bytes += step;
    }
    from = record_.data();
  }
  size_t done = 0;
  if (session_->seal(from, bytes, &done) != RecordSession::Moved::kSome) {
    throw LostPeer(peer(), session_->reason() + " while sending");
  }
  sealed_ += done;
  return true;
}

size_t RecordEndpoint::write(const iovec* parts, int n) {
  if (session_->sealed() == 0) {  // else those records go first, and then count as written
    while (session_->sealed() < kSentAtOnce && seal(parts, n)) continue;
  }
  if (sealed_ == 0) return 0;
  switch (session_->send()) {
    case RecordSession::Moved::kSome:
      return std::exchange(sealed_, 0);
    case RecordSession::Moved::kNone:
      note_full();
      return 0;
    case RecordSession::Moved::kEnded:
      break;
  }
  throw LostPeer(peer(), session_->reason() + " while sending");
}

size_t RecordEndpoint::read(const iovec* parts, int n) {
  size_t total = 0;
  for (; n > 0; ++parts, --n) {
    for (size_t have = 0; have < parts->iov_len;) {
      size_t done = 0;
      switch (session_->read(static_cast<char*>(parts->iov_base) + have, parts->iov_len - have, &done)) {
        case RecordSession::Moved::kSome:
          have += done;
          total += done;
          break;
        case RecordSession::Moved::kEnded:  // the next call finds it again
          if (total == 0) throw LostPeer(peer(), session_->reason() + " while receiving");
          return total;
        case RecordSession::Moved::kNone:
          return total;
      }
    }
  }
  return total;
}

void RecordEndpoint::poll_fds(Polled* fds, bool reading, bool writing) const {
  // The socket does not know of what the session holds. One that can be written wakes at once.
  fds->emplace_back(fd(), writing || (reading && session_->holds_input()));
}

}  // namespace ddl
