// Copies into memory that this rank writes and a peer reads, again and again.
//
// Lines that the peer has just read are in its cache, and to write them is slow: several times slower than memory if
// the two cores share no cache. Streaming stores are not slower, but then the peer reads from memory, which is slower
// where the two cores share a cache. How far apart they are is not known, and changes, so this measures it.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.h"
#include "base/helpers.h"
#include "reduce/copy.h"

namespace ddl {

class OneWayCopies {
 public:
  void copy(void* to, const void* from, uint64_t bytes) {
    if (to_stream_ > 0) {
      --to_stream_;
      ddl::copy(to, from, bytes, Stores::kStreaming);
      return;
    }
    if (bytes < kWorthTiming) {
      ddl::copy(to, from, bytes);
      return;
    }
    // What is measured is one thread: helpers take parts of the rest only.
    const uint64_t timed = Helpers::count() == 0 ? bytes : std::min(bytes, kAlone);
    const Nanoseconds begin = now_ns();
    ddl::copy(to, from, timed);
    const auto took = static_cast<uint64_t>(now_ns() - begin);
    if (took * kFarBytesPerNs <= timed) {
      slow_ = 0;
      remember_ = kRememberFirst;
    } else if (++slow_ >= kPatience) {
      to_stream_ = remember_;
      remember_ = std::min(2 * remember_, kRememberLast);
    }
    if (timed < bytes) {
      ddl::copy(static_cast<char*>(to) + timed, static_cast<const char*>(from) + timed, bytes - timed);
    }
  }

 private:
  // 2.5 bytes per nanosecond were seen between cores that share no cache, 9 to 45 between others; streaming 30.
  static constexpr uint64_t kFarBytesPerNs = 5;
  static constexpr uint64_t kWorthTiming = 16 << 10;
  static constexpr uint64_t kAlone = 128 << 10;
  static_assert(kAlone < Helpers::kWorthSharing, "one thread does it");
  static constexpr int kPatience = 4;  // slow copies in a row: one may have been interrupted
  // Copies, before the other way is tried again. The first slow ones may only have found the memory in no cache.
  static constexpr int kRememberFirst = 8, kRememberLast = 256;

  int slow_ = 0, to_stream_ = 0, remember_ = kRememberFirst;
};

}  // namespace ddl
