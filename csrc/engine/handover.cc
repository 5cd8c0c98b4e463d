#include "engine/handover.h"

#include <algorithm>

namespace ddl {

HandoverChoice::Ticket HandoverChoice::next(uint64_t bytes) {
  Ticket ticket;
  if (!tries_) return ticket;
  if (classes_.empty()) classes_.resize(64);
  ticket.size_class = static_cast<uint8_t>(63 - __builtin_clzll(bytes | 1));
  SizeClass& sizes = classes_[ticket.size_class];
  if (sizes.place == sizes.ways.size() * kEachWay + kSettled) {
    if (time_per_byte(sizes.ways[1]) < kWorthIt * time_per_byte(sizes.ways[0])) sizes.by_kernel = !sizes.by_kernel;
    sizes.place = 0;
    sizes.before = kBefore;
  }
  ticket.by_kernel = sizes.by_kernel;
  if (sizes.before > 0) {
    --sizes.before;
    return ticket;
  }
  const size_t place = sizes.place++, way = place / kEachWay, in_way = place % kEachWay;
  if (way < sizes.ways.size()) {
    ticket.by_kernel = sizes.by_kernel != (way == 1);
    ticket.timed = in_way + 1 >= kNotCounted;
    if (ticket.timed) {
      ticket.sample = static_cast<uint8_t>(way * (1 + kCounted) + in_way + 1 - kNotCounted);
      sample_of(ticket) = {0, 0, bytes};
    }
  }
  return ticket;
}

// The median. An operation counts from its begin, or from the end of the one before, if they overlap.
double HandoverChoice::time_per_byte(const Samples& samples) {
  std::array<double, kCounted> times{};
  for (size_t i = 0; i < kCounted; ++i) {
    const Sample &before = samples[i], &sample = samples[i + 1];
    times[i] =
        static_cast<double>(sample.end - std::max(sample.begin, before.end)) / static_cast<double>(sample.bytes);
  }
  std::sort(times.begin(), times.end());
  return times[kCounted / 2];
}

}  // namespace ddl
