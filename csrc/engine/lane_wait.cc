// How a lane's driver waits: awake at first, then asleep; and what it looks after meanwhile.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#include <algorithm>

#include "base/schedule.h"
#include "base/wake.h"
#include "engine/lane.h"

namespace ddl {

namespace {

constexpr Nanoseconds kSleep = 20 * kMillisecond;     // the longest sleep: so often this rank looks after its peers
constexpr Nanoseconds kMixedSleep = kMillisecond;     // when both sockets and shared memory are waited for
constexpr Nanoseconds kStageNap = 50 * kMicrosecond;  // while data comes from a GPU, which wakes nobody
constexpr Nanoseconds kSlowChecks = 5 * kMillisecond;
constexpr Nanoseconds kInterruptChecks = 100 * kMillisecond;
constexpr Nanoseconds kTending = 100 * kMillisecond;
constexpr int kQuickLooks = 40;  // they take about 2 us

}  // namespace

// False if the caller will not wait longer.
bool Lane::wait(Waiting* waiting, Caller* caller) {
  if (waiting->since == 0 && waiting->looks == 0) {  // here it takes no time: what is awaited is on its way
    for (Executor* executor : active_) record(executor->operation());
  }
  // The progress thread shares its core with the user's computation, so it never spins.
  const Nanoseconds spin = caller != nullptr ? patience_.spin : 0;
  const bool awake = failure_->ok() && expectation_.soon();
  if (awake && spin > 0 && waiting->since == 0 && waiting->looks++ < kQuickLooks) {
    cpu_pause();  // the others will come at once: do not even read the clock
    return true;
  }
  if (caller != nullptr) caller->let_go();
  const Nanoseconds now = now_ns();
  if (caller != nullptr && caller->left(now) == 0) return false;
  waiting->last = now;
  if (waiting->since == 0) {
    waiting->since = waiting->looked = waiting->interrupts = waiting->tended = now;
    note_begin(now);
    for (Executor* executor : active_) executor->operation()->begin_clock(now);
  }
  const Nanoseconds waited = now - waiting->since;
  if (awake && waited < spin) {
    for (int i = 0; i < 8; ++i) cpu_pause();
    return true;
  }
  if (awake && waited < spin + patience_.yield) {
    ::sched_yield();
    return true;
  }
  if (caller != nullptr && !caller->sleeps()) return false;
  activity_->waiting_since.store(waiting->since, std::memory_order_relaxed);
  const bool slept = sleep(caller != nullptr ? std::min(kSleep, caller->left(now)) : kSleep);
  const Nanoseconds after = waiting->last = now_ns();
  if (slept) expectation_.slept(after - waiting->since, spin + patience_.yield, !sockets_.empty(), &waiting->late);
  if (after - waiting->looked >= kSlowChecks) {
    waiting->looked = after;
    if (caller != nullptr) caller->note_sleep();
    check_on_peers();
    check_deadlines(after);
    failure_->settle(after);
  }
  if (after - waiting->tended >= kTending) {
    waiting->tended = after;
    if (links_->tend(id_)) ask_at_once();
  }
  if (caller != nullptr && after - waiting->interrupts >= kInterruptChecks) {
    waiting->interrupts = after;
    if (caller->interrupted()) {
      failure_->fail(ErrorKind::kAborted, rank_, "interrupted by a signal while waiting", current_text(), true);
    }
  }
  return true;
}

void Lane::end_wait(Waiting* waiting) {
  if (waiting->since != 0) {
    count(&activity_->waited, waiting->last - waiting->since);
    activity_->waiting_since.store(0, std::memory_order_relaxed);
  }
  *waiting = Waiting{};
}

// Whether an operation waits for a rank that shares memory with this one.
bool Lane::awaits_neighbour() const {
  for (const Executor* executor : active_) {
    for (int peer : executor->waiting_for()) {
      if (neighbourhood_.board(peer) != nullptr) return true;
    }
  }
  return false;
}

// False if there was something to do instead.
bool Lane::sleep(Nanoseconds longest) {
  sockets_.clear();
  // This stands before the last look below: if that finds nothing, the same ranks are awaited.
  const bool mixed = neighbourhood_.mixed() && awaits_neighbour();
  const auto staging =
      std::find_if(active_.begin(), active_.end(), [](const Executor* each) { return each->awaits_stage(); });
  const bool staged = staging != active_.end();
  staged_sequence_.store(staged ? (*staging)->operation()->descriptor.sequence : 0, std::memory_order_relaxed);
  sleep_word_->store(1, std::memory_order_seq_cst);
  full_fence(sleep_word_);
  // Look once more: what changed before the word was set has woken nobody.
  if (failure_->failed() || submitted_.load(std::memory_order_acquire) != nullptr || (failure_->ok() && progress())) {
    sleep_word_->store(0, std::memory_order_seq_cst);
    return false;
  }
  for (const Executor* executor : active_) {
    executor->poll_fds(&sockets_);
    note_awaited(*executor);
  }
  if (sockets_.empty() || !failure_->ok()) {
    futex_wait(sleep_word_, 1, std::min(longest, !failure_->ok() ? kMillisecond : staged ? kStageNap : kSleep));
  } else {
    polled_.assign(1, {wake_fd_.get(), POLLIN, 0});
    for (const auto& [fd, room] : sockets_) {
      polled_.push_back({fd, static_cast<short>(room ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const bool turn_taken = id_ == LaneId::kLarge && links_->turn_taken();
    const Nanoseconds limit = staged ? kStageNap : mixed ? kMixedSleep : turn_taken ? Turn::kPatience : kSleep;
    const timespec time{0, static_cast<long>(std::min(longest, limit))};
    ::ppoll(polled_.data(), polled_.size(), &time, nullptr);
    eventfd_t ignored = 0;
    if (polled_[0].revents != 0) ::eventfd_read(wake_fd_.get(), &ignored);
  }
  sleep_word_->store(0, std::memory_order_seq_cst);
  return true;
}

}  // namespace ddl
