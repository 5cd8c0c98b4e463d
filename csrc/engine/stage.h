// What stands between an operation and arrays that it cannot use where they are: it works on a copy of them.
//
// They lie on a GPU (device/transfer.h), or are of a type that is too narrow for a sum (wide_average.h). Piece k may
// begin when its data has arrived in the copy. When it has ended, its result may leave.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace ddl {

// A part of an array, in bytes.
struct Range {
  uint64_t offset, bytes;
};
using Ranges = std::vector<Range>;

class Stage {
 public:
  virtual ~Stage() = default;

  // --- for the driver of the lane; they never block ---

  // Whether the data of a piece is there, or never will be: see `check`. Asked again and again.
  virtual bool arrived(uint64_t piece) = 0;
  // Throws Error if what holds the arrays has failed.
  virtual void check() = 0;
  // The piece has ended. Called once for each piece, in any order.
  virtual void left(uint64_t piece) = 0;
  // The operation has ended with an error: no more pieces begin or leave.
  virtual void abandon() = 0;

  // --- for the submitter ---

  // The operation begins. `submitted`: by another thread, and the submitter does not wait for it here: streams may.
  virtual void follow(bool submitted) = 0;
  // The operation will not begin after all.
  virtual void cancel() = 0;
  // Whether the arrays and their copies are not in use any more. Then this thread may give them to others.
  virtual bool ended() const = 0;
  // Sleeps until then, or for `timeout`; may return earlier.
  virtual void sleep(Nanoseconds timeout) = 0;
  // Call when it has ended, and the operation has, well: from now on this thread sees the results in the arrays.
  // Throws Error if what holds them has failed. Idempotent.
  virtual void finish() = 0;
  // Whether it is `finish` that writes the results: then the arrays must live until it is called.
  virtual bool writes_in_finish() const { return false; }
  // Whether a stream of a GPU can wait for the results, or only the host.
  virtual bool can_wait_on() const { return false; }
  // Lets what `stream` gets from now on wait for the results, and returns true; false if only the host can wait.
  virtual bool wait_on(void* stream) {
    (void)stream;
    return false;
  }
};

}  // namespace ddl
