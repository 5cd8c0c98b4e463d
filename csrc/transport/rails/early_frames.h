// Frames that came before their turn and were set aside, so that what their rail brings behind them can be read.
//
// A RailsEndpoint (rails_endpoint.h) owns them, and reads from them before it reads from its rails.
#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace ddl {

class EarlyFrames {
 public:
  // `offset`: of the frame's first byte in the stream.
  void keep(uint64_t offset, std::vector<char> frame) { frames_[offset] = std::move(frame); }
  // Copies the stream's next bytes, from `position` on, into the parts, behind the first `skip` bytes, as far as
  // frames are here. Returns how many. Frames of which nothing is needed any more are dropped.
  size_t take(uint64_t position, const iovec* parts, int n, size_t skip);

 private:
  std::map<uint64_t, std::vector<char>> frames_;  // by offset
};

}  // namespace ddl
