// Copies by the processor's own instruction for it (`rep movsb`).
//
// Some processors do not read the lines that it replaces. There it takes 0.5 to 0.9 of the time of a loop of vector
// stores: above all where another core, far away, has those lines, or where the arrays are in no cache. On others it
// takes longer, or only where the two addresses differ by little more than a multiple of 4 KiB: the processor then
// takes them for arrays that overlap. So it is measured.
#pragma once

#include <array>
#include <cstddef>

namespace ddl {

using CopyKernel = void (*)(void* to, const void* from, std::size_t bytes);

void string_copy(void* to, const void* from, std::size_t bytes);

class StringCopies {
 public:
  static constexpr std::size_t kWorthIt = std::size_t{64} << 10;  // bytes; less is quicker by the loop

  // Measures, in a millisecond.
  explicit StringCopies(CopyKernel loop);
  // Whether `string_copy` takes less time than the loop. Of at least kWorthIt bytes.
  bool quicker(const void* to, const void* from) const;

 private:
  static constexpr std::size_t kDistances = 4;  // kinds of distances between two addresses
  std::array<bool, kDistances> quicker_{};
};

}  // namespace ddl
