#include "engine/handover.h"

#include <algorithm>

namespace ddl {

HandoverChoice::Ticket HandoverChoice::next(Collective kind, uint64_t bytes, bool by_kernel) {
  Ticket ticket;
  ticket.by_kernel = by_kernel;
  if (!tries_) return ticket;
  const int highest_bit = 63 - __builtin_clzll(bytes | 1);
  ticket.size_class = static_cast<uint16_t>(static_cast<int>(kind) * 64 + highest_bit);
  if (classes_.size() <= ticket.size_class) classes_.resize(ticket.size_class + size_t{1});
  SizeClass& sizes = classes_[ticket.size_class];
  if (!sizes.known) sizes.by_kernel = by_kernel;
  sizes.known = true;
  const size_t not_counted = kNotCounted + (kWarmed >> highest_bit), each_way = not_counted + kCounted;
  if (sizes.place == sizes.ways.size() * each_way + kSettled) {
    if (time_per_byte(sizes.ways[1]) < kWorthIt * time_per_byte(sizes.ways[0])) {
      sizes.by_kernel = !sizes.by_kernel;
      sizes.pause = kPauseFirst;
    }
    sizes.place = 0;
    sizes.before = sizes.pause * each_way;
    sizes.pause = std::min(2 * sizes.pause, kPauseLast);
  }
  ticket.by_kernel = sizes.by_kernel;
  if (sizes.before > 0) {
    --sizes.before;
    return ticket;
  }
  const size_t place = sizes.place++, way = place / each_way, in_way = place % each_way;
  if (way < sizes.ways.size()) {
    ticket.by_kernel = sizes.by_kernel != (way == 1);
    ticket.timed = in_way + 1 >= not_counted;
    if (ticket.timed) {
      ticket.sample = static_cast<uint8_t>(way * (1 + kCounted) + in_way + 1 - not_counted);
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
