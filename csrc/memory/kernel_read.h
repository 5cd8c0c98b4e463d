// One copy by the kernel (process_vm_readv) of memory that another process of this host does not share.
//
// The kernel allows it where one process may trace the other: mostly the same user, and no Yama, no seccomp filter
// against it. Ranks try it on one another before they rely on it (engine/neighbourhood.h). A late read of memory that
// a rank has taken back, after an operation has failed, does no harm. A late write would: see memory/kernel_write.h.
#pragma once

#include <array>
#include <cstdint>

namespace ddl {

// By what a reader knows a process: a number that no other process has, and where it lies there. A process id alone
// may be another's by now.
struct ProcessMark {
  uint64_t address = 0;
  std::array<uint64_t, 2> number{};
};

class KernelRead {
 public:
  static constexpr uint64_t kNever = ~uint64_t{0};
  // kGone: there is no such process any more. kRefused: it may not be read, or not there.
  enum class Outcome { kDone, kGone, kRefused };

  static const ProcessMark& own_mark();
  // Copies `bytes` at `address` of process `pid`. Helpers take parts of large reads (base/helpers.h).
  static Outcome copy(int pid, const ProcessMark& mark, void* to, uint64_t address, uint64_t bytes);
  // kDone: there is still the process of that mark.
  static Outcome find(int pid, const ProcessMark& mark);
  // Whether others could read this memory of this process. (Not where a device has its registers, for example.)
  static bool possible(const void* data, uint64_t bytes);
  // From how many bytes on it takes less time than to copy them to shared memory first. Measured by the first call,
  // in about a millisecond. kNever: not up to the largest size that is tried.
  static uint64_t pays_from();
  // What this process has read so far.
  static uint64_t bytes_read();
};

}  // namespace ddl
