// The limit of waking: how long a process takes to run that sleeps in a futex when another wakes it.
//
// A parent and a child in one shared mapping. The child sleeps; the parent waits until it surely does, notes the time
// and wakes it; the child notes when it runs. Writes the seconds of each time as JSON. No code of DDL is used.
//
//   waking --times 200 --pause-us 5000 --output DIR
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <climits>

#include "common.h"

namespace limit {

struct Place {
  std::atomic<uint32_t> word;  // 1 while the child is to sleep
  std::atomic<double> woke;    // when it ran; 0 until then
};

void futex(std::atomic<uint32_t>* word, int operation, uint32_t value) {
  syscall(SYS_futex, word, operation, value, nullptr, nullptr, 0);
}

void sleep_for_ever(Place* place) {
  for (;;) {
    while (place->word.load() == 1) futex(&place->word, FUTEX_WAIT, 1);
    place->woke.store(wall());
    while (place->word.load() == 0) usleep(100);
  }
}

Result measure(Place* place, int times, useconds_t pause) {
  Result result{0, {}, 0, times};
  for (int i = 0; i < times; i++) {
    place->woke.store(0);
    place->word.store(1);
    usleep(pause);
    place->woke.store(0);
    const double called = wall();
    place->word.store(0);
    futex(&place->word, FUTEX_WAKE, INT_MAX);
    while (place->woke.load() == 0) sched_yield();  // the child may be waiting for this very core
    result.seconds.push_back(place->woke.load() - called);
  }
  return result;
}

}  // namespace limit

int main(int argc, char** argv) {
  const limit::Arguments arguments(argc, argv);
  void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) limit::die("no shared memory");
  auto* place = new (memory) limit::Place{{1}, {0}};
  const pid_t child = fork();
  if (child < 0) limit::die("fork failed");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit::sleep_for_ever(place);
  }
  const auto pause = static_cast<useconds_t>(arguments.number("pause-us"));
  const limit::Result result = limit::measure(place, static_cast<int>(arguments.number("times")), pause);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  limit::write_results(arguments.text("output"), 0, {result});
}
