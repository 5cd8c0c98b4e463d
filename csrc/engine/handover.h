// How the others of a host get what they need of a large private array: by way of staging, or by the kernel.
//
// With staging there are two copies of each byte. By the kernel there is one, but that takes longer. Which way takes
// less time depends on the kernel, on the pages, on how far apart the cores are and on who else uses the memory, and
// that may change while a job runs. So the owner tries both ways now and then, and keeps the quicker one until the
// next trial. The others follow what it posts. Belongs to one lane.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "engine/board.h"
#include "engine/collectives.h"

namespace ddl {

class HandoverChoice {
 public:
  // What an operation is to the trials.
  struct Ticket {
    bool by_kernel = false;
    bool timed = false;
    uint8_t sample = 0;
    uint16_t size_class = 0;
  };

  // `tries`: whether there are trials. If ranks take turns on cores, most of what could be timed is who is next.
  explicit HandoverChoice(bool tries) : tries_(tries) {}

  bool tries() const { return tries_; }
  // Of the next operation of that kind, which has so many bytes. `by_kernel`: where nothing is known yet.
  Ticket next(Collective kind, uint64_t bytes, bool by_kernel);
  // When all ranks had begun a timed operation, and when it was over on all of them.
  void note_begin(const Ticket& ticket, Nanoseconds moment) { sample_of(ticket).begin = moment; }
  void note_end(const Ticket& ticket, Nanoseconds moment) { sample_of(ticket).end = moment; }

 private:
  // Numbers of operations. A trial has some in the way of now and as many in the other one. The first of them do not
  // count: memory that has not gone that way for long takes up to twice as long. After some more, the end of the last
  // one is known.
  static constexpr size_t kNotCounted = 5, kCounted = 3, kSettled = 2 * kLargeSlots;
  static constexpr uint64_t kWarmed = 4 << 20;  // bytes, in operations that do not count: staging goes round in less
  static constexpr size_t kBeforeFirst = 4;     // before the first trial
  // Before another one, for each operation of one in one way: as many after a trial that has changed the way, then
  // twice as many after each trial, up to the last.
  static constexpr size_t kPauseFirst = 8, kPauseLast = 128;
  static constexpr double kWorthIt = 0.95;  // the other way's time, as a part of this one's

  struct Sample {
    Nanoseconds begin = 0, end = 0;
    uint64_t bytes = 0;
  };
  using Samples = std::array<Sample, 1 + kCounted>;  // the first: of the operation before those that count
  struct SizeClass {                                 // all sizes with the same highest bit
    bool known = false, by_kernel = false;
    size_t before = kBeforeFirst, pause = kPauseFirst;  // operations before the next trial
    size_t place = 0;                                   // of the next operation in the trial
    std::array<Samples, 2> ways{};
  };

  Sample& sample_of(const Ticket& ticket) {
    return classes_[ticket.size_class].ways[ticket.sample / (1 + kCounted)][ticket.sample % (1 + kCounted)];
  }
  static double time_per_byte(const Samples& samples);

  const bool tries_;
  std::vector<SizeClass> classes_;  // empty until the first operation
};

}  // namespace ddl
