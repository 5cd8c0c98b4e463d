// Host memory that GPUs read and write directly: parts of the arena, registered with the driver.
//
// A slab is registered once, for all GPUs, and kept until the process ends: registering costs about a millisecond per
// MiB, and pages that are registered must never be given back to the kernel one by one (the GPU would keep the
// old pages while this process gets new ones). So slabs are never freed to the arena. A copy must not span two
// registrations, so each allocation lies in one slab. Slabs are parts of the arena, so the other ranks of the host
// reach them like any array from ddl.empty. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/mutex.h"
#include "device/driver.h"
#include "memory/free_list.h"

namespace ddl {

class Slabs {
 public:
  static Slabs& process();
  Slabs(const Slabs&) = delete;
  Slabs& operator=(const Slabs&) = delete;

  struct Part {
    char* memory;
    bool registered;  // false if the driver refuses that: right, but slow
  };
  // Needs a current context. Throws kResourceError if the arena is full, or the host's memory.
  Part allocate(const Driver& driver, size_t bytes);
  void free(const Driver& driver, const char* memory);
  // Why memory could not be registered, once in the process; "": it could be, or that was told.
  std::string take_refusal();
  // What was registered so far, how long that took, and why the driver has refused it, if it has.
  struct Registration {
    uint64_t bytes = 0;
    Nanoseconds took = 0;
    std::string refusal;
  };
  Registration registration();

 private:
  struct Slab {
    char* base;
    bool registered;
    FreeList parts;
  };
  Slabs() = default;
  Slab make(const Driver& driver, size_t need);

  Mutex mutex_;
  std::vector<Slab> slabs_ DDL_GUARDED_BY(mutex_);
  uint64_t registered_ DDL_GUARDED_BY(mutex_) = 0;  // bytes
  Nanoseconds registering_ DDL_GUARDED_BY(mutex_) = 0;
  std::string refusal_ DDL_GUARDED_BY(mutex_);
  bool refused_ DDL_GUARDED_BY(mutex_) = false;  // it would be, the next time
  bool told_ DDL_GUARDED_BY(mutex_) = false;
};

}  // namespace ddl
