// One copy by the kernel (process_vm_writev) to private memory of another process of this host.
//
// A late write would do harm: after an operation has failed, a rank takes its array back, while another may not have
// heard of the failure yet. So each call writes to two places: one byte to the *gate*, a page of the rank that it
// writes to, then the data. The kernel takes them in this order, and ends at the first that it may not write. A rank
// that takes its arrays back first closes its gate. No call that begins after that changes anything. Then it waits
// for the calls that had passed the gate before (engine/neighbourhood.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "memory/kernel_read.h"

namespace ddl {

// The page of a communicator's own rank.
class WriteGate {
 public:
  // Throws kResourceError.
  WriteGate();
  ~WriteGate();
  WriteGate(const WriteGate&) = delete;
  WriteGate& operator=(const WriteGate&) = delete;

  uint64_t address() const { return reinterpret_cast<uintptr_t>(page_); }
  // For good. Any thread, more than once.
  void close();

 private:
  void* page_;
  std::atomic<bool> closed_{false};
};

class KernelWrite {
 public:
  // Copies `bytes` to `address` of process `pid`, through its gate. kGone: there is no such process any more, or its
  // gate is closed. kRefused: it may not be written, or not there. Then part of the data may have been written.
  // Helpers take parts of large writes.
  static KernelRead::Outcome copy(int pid, const ProcessMark& mark, uint64_t gate, uint64_t address, const void* from,
                                  uint64_t bytes);
  // Whether a thread of the process may be inside the kernel's copy. (Not: it has ended, or all its threads are
  // stopped, which happens on the way out of the kernel.)
  static bool may_be_at_work(int pid);
  // What this process has written so far.
  static uint64_t bytes_written();
};

}  // namespace ddl
