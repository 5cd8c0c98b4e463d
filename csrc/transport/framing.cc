#include "transport/framing.h"

#include <array>

namespace ddl {

size_t PartsWriter::write(Endpoint* endpoint, bool in_place) {
  size_t total = 0;
  while (!done()) {
    const iovec* const parts = parts_.data() + next_;
    const int n = static_cast<int>(std::min(kMaxParts, parts_.size() - next_));
    size_t bytes = in_place ? endpoint->write_in_place(parts, n) : endpoint->write(parts, n);
    if (bytes == 0) break;
    total += bytes;
    while (bytes > 0) {
      iovec& part = parts_[next_];
      const size_t step = std::min(bytes, part.iov_len);
      part.iov_base = static_cast<char*>(part.iov_base) + step;
      part.iov_len -= step;
      bytes -= step;
      if (part.iov_len == 0) ++next_;
    }
  }
  return total;
}

void PartsWriter::blank() {
  static const std::array<char, 64 << 10> zeros{};
  const size_t first = std::max<size_t>(next_, 1);
  size_t bytes = 0;
  for (size_t i = first; i < parts_.size(); ++i) bytes += parts_[i].iov_len;
  parts_.resize(std::min(first, parts_.size()));
  for (size_t step = 0; bytes > 0; bytes -= step) {
    step = std::min(bytes, zeros.size());
    append(zeros.data(), step);
  }
}

}  // namespace ddl
