#include "base/helpers.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/futex.h"
#include "base/mutex.h"
#include "base/process.h"
#include "base/schedule.h"

namespace ddl {

namespace {

constexpr std::size_t kLeastPart = std::size_t{64} << 10;  // bytes
constexpr std::size_t kPartsEach = 2;              // of a thread: one that comes late leaves its second to others
constexpr Nanoseconds kAwake = 50 * kMicrosecond;  // a helper looks for more so long before it sleeps
// To wake helpers takes as long as 256 KiB do. So one work alone wakes nobody unless it is large: the second does
// that follows at once, as in an operation of many pieces.
constexpr std::size_t kWorthWaking = std::size_t{2} << 20;  // bytes
constexpr Nanoseconds kAtOnce = 100 * kMicrosecond;
constexpr int kLooks = 1000;  // they take about 50 us
constexpr int kPatience = 4;  // times in a row that helpers cost more than they brought
constexpr int kRest = 256;    // works that are done alone then

struct Job {
  std::size_t bytes, part;
  void (*call)(const void* work, std::size_t begin, std::size_t end);
  const void* work;
  std::atomic<std::size_t> next{0};  // where the first part begins that nobody has taken

  // Takes parts until there are no more. Returns how many.
  uint64_t take_parts() {
    uint64_t taken = 0;
    for (std::size_t at = next.fetch_add(part); at < bytes; at = next.fetch_add(part)) {
      call(work, at, std::min(bytes, at + part));
      ++taken;
    }
    return taken;
  }
};

// The helpers of a process. A job lies on the stack of the thread that shares it. So that thread must not return
// while a helper looks at it: a helper enters (`inside`), then looks for the job. The thread takes the job away, then
// waits until nobody is inside. One of the two sees the other, as all of this is sequentially consistent.
class Crew {
 public:
  Crew() = default;
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  void enter(int count);
  void leave();
  int count() const { return count_.load(std::memory_order_relaxed); }
  uint64_t parts_taken() const { return taken_.load(std::memory_order_relaxed); }
  void run(Job* job);

 private:
  void start(int count) DDL_REQUIRES(lock_);
  void end() DDL_REQUIRES(lock_);
  void thread_main();
  bool help();
  void share(Job* job) DDL_REQUIRES(turn_);
  void note(Nanoseconds worked, Nanoseconds waited) DDL_REQUIRES(turn_);

  Mutex lock_;  // of enter and leave
  int users_ DDL_GUARDED_BY(lock_) = 0;
  std::vector<std::thread> threads_ DDL_GUARDED_BY(lock_);
  std::atomic<int> count_{0};

  Role turn_;  // to share a job, or to let helpers come or go
  std::atomic<Job*> job_{nullptr};
  std::atomic<int> inside_{0};      // helpers that may look at the job
  std::atomic<uint32_t> calls_{0};  // what helpers sleep on
  std::atomic<int> asleep_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> taken_{0};
  Nanoseconds last_ DDL_GUARDED_BY(turn_) = 0;  // when the work before ended
  int costly_ DDL_GUARDED_BY(turn_) = 0, rest_ DDL_GUARDED_BY(turn_) = 0;
};

void Crew::enter(int count) {
  const Lock lock(lock_);
  ++users_;
  if (count == static_cast<int>(threads_.size())) return;
  end();
  start(count);
}

void Crew::leave() {
  const Lock lock(lock_);
  if (--users_ == 0) end();
}

void Crew::start(int count) {
  stop_.store(false);
  try {
    while (static_cast<int>(threads_.size()) < count) threads_.emplace_back([this] { thread_main(); });
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are will do.
  }
  count_.store(static_cast<int>(threads_.size()));
}

void Crew::end() {
  while (!turn_.enter()) ::sched_yield();  // for as long as a shared job takes
  count_.store(0);
  stop_.store(true);
  calls_.fetch_add(1);
  futex_wake(&calls_);
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  costly_ = rest_ = 0;
  turn_.leave();
}

void Crew::run(Job* job) {
  if (!turn_.enter()) {  // they help another lane
    job->take_parts();
    return;
  }
  if (rest_ > 0) {
    --rest_;
    job->take_parts();
  } else {
    share(job);
  }
  turn_.leave();
}

void Crew::share(Job* job) {
  const Nanoseconds begin = now_ns();
  const bool wakes = job->bytes >= kWorthWaking || begin - last_ < kAtOnce;
  job_.store(job);
  calls_.fetch_add(1);
  if (wakes && asleep_.load() > 0) futex_wake(&calls_);
  job->take_parts();
  const Nanoseconds own = now_ns();
  job_.store(nullptr);
  // Each of those inside ends the part that it has begun.
  for (int looks = 0; inside_.load() != 0; ++looks) {
    if (looks < kLooks) {
      cpu_pause();
    } else {
      ::sched_yield();
    }
  }
  last_ = now_ns();
  note(own - begin, last_ - own);
}

// A helper that has taken a part and lost its core holds everybody up. Where cores are not free after all, because
// the user's program or another job computes on them, do without helpers for some time.
void Crew::note(Nanoseconds worked, Nanoseconds waited) {
  costly_ = waited > worked ? costly_ + 1 : 0;
  if (costly_ < kPatience) return;
  costly_ = 0;
  rest_ = kRest;
}

void Crew::thread_main() {
  ask_for_short_turns();
  Nanoseconds idle_since = 0;
  while (!stop_.load()) {
    const uint32_t calls = calls_.load();
    if (help()) {
      idle_since = 0;
      continue;
    }
    const Nanoseconds now = now_ns();
    if (idle_since == 0) idle_since = now;
    if (now - idle_since < kAwake) {
      ::sched_yield();  // what else wants this core may have it
      continue;
    }
    asleep_.fetch_add(1);
    if (!stop_.load()) futex_wait(&calls_, calls, kSecond);
    asleep_.fetch_sub(1);
    idle_since = 0;
  }
}

// True if it has done something.
bool Crew::help() {
  if (job_.load() == nullptr) return false;
  inside_.fetch_add(1);
  Job* const job = job_.load();
  const uint64_t taken = job == nullptr ? 0 : job->take_parts();
  taken_.fetch_add(taken);
  inside_.fetch_sub(1);
  return taken > 0;
}

// Never destroyed: a thread may share work while the process ends. A forked child has another one, as the threads of
// its parent are not there.
std::atomic<Crew*> crew{nullptr};
std::atomic<int> crew_of{0};  // which process

Crew* own_crew() { return crew_of.load() == process_id() ? crew.load() : nullptr; }

Crew& make_crew() {
  static SpinLock making;
  const Lock lock(making);
  if (own_crew() == nullptr) {
    crew.store(new Crew);
    crew_of.store(process_id());
  }
  return *crew.load();
}

}  // namespace

void Helpers::enter(int count) { make_crew().enter(std::clamp(count, 0, kMost)); }

void Helpers::leave() {
  if (Crew* const own = own_crew()) own->leave();
}

int Helpers::count() {
  const Crew* const own = own_crew();
  return own == nullptr ? 0 : own->count();
}

uint64_t Helpers::parts_taken() {
  const Crew* const own = own_crew();
  return own == nullptr ? 0 : own->parts_taken();
}

void Helpers::run(std::size_t bytes, const Task& task) {
  Crew* const own = own_crew();
  const std::size_t threads = static_cast<std::size_t>(own->count()) + 1;
  const std::size_t parts = std::min(bytes / kLeastPart, threads * kPartsEach);
  const std::size_t part = (bytes / parts + kUnit - 1) / kUnit * kUnit;
  Job job{bytes, part, task.call, task.work, {}};
  own->run(&job);
}

}  // namespace ddl
