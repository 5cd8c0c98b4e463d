#include "base/schedule.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace ddl {

namespace {

// sched_attr of sched_setattr(2), first version. It is declared here because glibc has it only since 2.41.
struct Attributes {
  uint32_t size;
  uint32_t policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime;  // of the ordinary policies: the length of a turn in nanoseconds
  uint64_t deadline;
  uint64_t period;
};
static_assert(sizeof(Attributes) == 48, "the kernel knows the version by the size");

constexpr uint64_t kTurn = 100'000;  // the shortest that the kernel gives

}  // namespace

void ask_for_short_turns() {
  Attributes attributes = {};
  // Keep what the user has set (nice, batch, real time).
  if (::syscall(SYS_sched_getattr, 0, &attributes, sizeof attributes, 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;
  attributes.runtime = kTurn;
  ::syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void ask_for_exact_naps() { ::syscall(SYS_prctl, PR_SET_TIMERSLACK, 1UL, 0, 0, 0); }  // nanoseconds; 0: the default

}  // namespace ddl
