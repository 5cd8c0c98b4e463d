#include "transport/rails/early_frames.h"

#include <algorithm>
#include <cstring>

namespace ddl {

namespace {

// Copies bytes into the parts, behind the first `skip` bytes. Returns how many there was room for.
size_t scatter(const iovec* parts, int n, size_t skip, const char* from, size_t bytes) {
  size_t total = 0;
  for (int i = 0; i < n && total < bytes; ++i) {
    if (skip >= parts[i].iov_len) {
      skip -= parts[i].iov_len;
      continue;
    }
    const size_t step = std::min(parts[i].iov_len - skip, bytes - total);
    std::memcpy(static_cast<char*>(parts[i].iov_base) + skip, from + total, step);
    total += step;
    skip = 0;
  }
  return total;
}

}  // namespace

size_t EarlyFrames::take(uint64_t position, const iovec* parts, int n, size_t skip) {
  size_t total = 0;
  while (!frames_.empty() && frames_.begin()->first <= position + total) {
    const std::vector<char>& frame = frames_.begin()->second;
    const size_t done = position + total - frames_.begin()->first;
    if (done < frame.size()) {
      const size_t step = scatter(parts, n, skip + total, frame.data() + done, frame.size() - done);
      total += step;
      if (done + step < frame.size()) return total;
    }
    frames_.erase(frames_.begin());
  }
  return total;
}

}  // namespace ddl
