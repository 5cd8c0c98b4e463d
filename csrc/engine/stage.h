// The gates of an operation whose arrays lie elsewhere, on a GPU: the engine works on a copy of them in the arena.
//
// Piece k may begin when its data has arrived in that copy. When it has ended, its result may leave. The engine knows
// no more of GPUs than this. Its functions are called by the driver of the lane, and never block.
#pragma once

#include <cstdint>
#include <vector>

namespace ddl {

// A part of an array, in bytes.
struct Range {
  uint64_t offset, bytes;
};
using Ranges = std::vector<Range>;

class Stage {
 public:
  virtual ~Stage() = default;
  // Whether the data of a piece is there, or never will be: see `check`. Asked again and again.
  virtual bool arrived(uint64_t piece) = 0;
  // Throws Error if what holds the arrays has failed.
  virtual void check() = 0;
  // The piece has ended. Called once for each piece, in any order.
  virtual void left(uint64_t piece) = 0;
  // The operation has ended with an error: no more pieces begin or leave.
  virtual void abandon() = 0;
};

}  // namespace ddl
