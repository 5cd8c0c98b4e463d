// Writes and reads bytes behind a header, on an endpoint. Messages go as segments (wire/segment.h). A stream over
// several rails goes as frames (wire/frame.h), with the segments inside the frames.
//
// `Header` is a struct with kBytes and Bytes, an `encode` and a `decode`.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "transport/endpoint.h"

namespace ddl {

constexpr size_t kMaxParts = 64;  // iovecs given to an endpoint at once

// Parts of memory that go out one after the other.
class PartsWriter {
 public:
  void append(const void* from, size_t bytes) {
    if (bytes > 0) parts_.push_back({const_cast<void*>(from), bytes});  // an endpoint takes 0 bytes of an empty part
  }
  bool done() const { return next_ == parts_.size(); }
  // Writes until all has gone or the endpoint takes no more. Returns how many bytes went.
  size_t write(Endpoint* endpoint, bool in_place = false);
  // From here on zeros go, as many as bytes are left behind the first part, so that their memory may change.
  void blank();
  // Forgets what has not gone.
  void clear() {
    parts_.clear();
    next_ = 0;
  }

 private:
  std::vector<iovec> parts_;
  size_t next_ = 0;  // the first part that has not gone
};

template <typename Header>
class FramedWriter : public PartsWriter {
 public:
  // The header; its payload is appended.
  void begin(const Header& header) {
    encode(header, &bytes_);
    clear();
    append(bytes_.data(), bytes_.size());
  }

 private:
  typename Header::Bytes bytes_;
};

template <typename Header>
class HeaderReader {
 public:
  bool complete() const { return done_ == Header::kBytes; }
  bool begun() const { return done_ > 0; }
  // Where the next bytes of the header go.
  iovec rest() { return {bytes_.data() + done_, Header::kBytes - done_}; }
  // `bytes` came, into `rest` and what was behind it. Returns how many are behind the header.
  size_t take(size_t bytes) {
    const size_t step = std::min(bytes, Header::kBytes - done_);
    done_ += step;
    return bytes - step;
  }
  // Of a complete one. False if these bytes are no such header.
  bool parse(Header* header) const { return decode(bytes_, header); }
  void restart() { done_ = 0; }

 private:
  typename Header::Bytes bytes_;
  size_t done_ = 0;
};

}  // namespace ddl
