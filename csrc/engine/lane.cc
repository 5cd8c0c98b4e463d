#include "engine/lane.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/schedule.h"
#include "base/wake.h"

namespace ddl {

namespace {

constexpr Nanoseconds kSleep = 20 * kMillisecond;     // the longest sleep: so often this rank looks after its peers
constexpr Nanoseconds kMixedSleep = kMillisecond;     // when both sockets and shared memory are waited for
constexpr Nanoseconds kStageNap = 50 * kMicrosecond;  // while data comes from a GPU, which wakes nobody
constexpr Nanoseconds kSlowChecks = 5 * kMillisecond;
constexpr Nanoseconds kInterruptChecks = 100 * kMillisecond;
constexpr Nanoseconds kTending = 100 * kMillisecond;
constexpr int kQuickLooks = 40;                       // they take about 2 us
constexpr uint64_t kWorthTiming = uint64_t{1} << 20;  // bytes; it takes much longer than a look at the clock

size_t slots_of(LaneId id) { return id == LaneId::kLarge ? kLargeSlots : 1; }
int first_slot(LaneId id) { return id == LaneId::kSmall ? 0 : id == LaneId::kLarge ? 1 : kPointToPointSlot; }

}  // namespace

Lane::Lane(int rank, LaneId id, const Neighbourhood& neighbourhood, Links* links, Failure* failure,
           Activity* activity, const Patience& patience)
    : rank_(rank),
      id_(id),
      neighbourhood_(neighbourhood),
      links_(links),
      failure_(failure),
      activity_(activity),
      patience_(patience),
      sleep_word_(&neighbourhood.own_board()->lanes[static_cast<size_t>(id)].sleeping),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_fd_) throw_errno("eventfd");
  for (size_t i = 0; i < slots_of(id); ++i) {
    executors_.push_back(
        std::make_unique<Executor>(rank_, first_slot(id) + static_cast<int>(i), neighbourhood_, links_));
  }
}

Lane::~Lane() { stop(); }

void Lane::submit(Operation* operation) {
  pending_.fetch_add(1, std::memory_order_seq_cst);
  operation->next = submitted_.load(std::memory_order_relaxed);
  while (!submitted_.compare_exchange_weak(operation->next, operation, std::memory_order_acq_rel)) {
  }
}

bool Lane::enter_and_submit(const std::shared_ptr<Operation>& operation, bool until_its_end) {
  const bool drives = enter();
  if (!drives || !until_its_end) operation->self = operation;
  if (!drives) Recorder::write(operation.get());  // the driver may have it at once
  submit(operation.get());
  return drives;
}

void Lane::kick() {
  if (driver_.taken()) {
    wake();
    return;
  }
  if (!has_thread_.load(std::memory_order_acquire)) {
    const Lock lock(starting_);
    if (!thread_.joinable() && !stop_.load()) {
      thread_ = std::thread([this] { thread_main(); });
      has_thread_.store(true, std::memory_order_release);
    }
  }
  kicks_.fetch_add(1, std::memory_order_seq_cst);
  if (thread_asleep_.load(std::memory_order_seq_cst) != 0) futex_wake(&kicks_);
}

void Lane::wake() {
  full_fence(sleep_word_);
  if (sleep_word_->load(std::memory_order_seq_cst) == 0) return;
  wake_if_sleeping(sleep_word_);
  const Lock lock(starting_);  // stop() may close the descriptor, and its number may be used again
  if (wake_fd_) ::eventfd_write(wake_fd_.get(), 1);
}

void Lane::tend() {
  if (!enter()) return;
  links_->adopt(id_);
  links_->tend(id_);
  leave();
}

void Lane::drain() {
  while (has_work()) {
    if (!enter()) {
      wake();
      ::usleep(1000);
      continue;
    }
    fail_all();
    driver_.leave();
  }
}

void Lane::stop() {
  stop_.store(true, std::memory_order_seq_cst);
  wake();
  const Lock lock(starting_);
  kicks_.fetch_add(1, std::memory_order_seq_cst);
  futex_wake(&kicks_);
  if (thread_.joinable()) thread_.join();
  wake_fd_.reset();
}

void Lane::run(const Work& work, Caller* caller) {
  drive(&work, caller);
  leave();
}

// A submitter adds to pending_, then looks for a driver. This does it in the opposite order, so one sees the other.
void Lane::leave() {
  driver_.leave();
  if (has_work()) kick();
}

void Lane::thread_main() {
  ask_for_short_turns();
  ask_for_exact_naps();
  while (!stop_.load(std::memory_order_seq_cst)) {
    const uint32_t kicks = kicks_.load(std::memory_order_seq_cst);
    if (has_work() && enter()) {
      drive(nullptr, nullptr);
      driver_.leave();
      continue;
    }
    thread_asleep_.store(1, std::memory_order_seq_cst);
    if (!stop_.load(std::memory_order_seq_cst)) futex_wait(&kicks_, kicks, kSecond);
    thread_asleep_.store(0, std::memory_order_seq_cst);
  }
}

// --- driving ------------------------------------------------------------------------------------------------------

void Lane::drive(const Work* until, Caller* caller) {
  Waiting waiting;
  while (until != nullptr ? !until->done() : has_work()) {
    if (failure_->failed()) {
      fail_all();
      continue;
    }
    if (failure_->ok()) {
      admit();
      if (progress()) {
        end_wait(&waiting);
        if (caller != nullptr && caller->over()) break;
        continue;
      }
    }
    if (!wait(&waiting, caller)) break;
  }
  end_wait(&waiting);
}

Operation* Lane::take_queued() {
  if (queue_ == nullptr) {
    if (submitted_.load(std::memory_order_relaxed) == nullptr) return nullptr;
    Operation* newest = submitted_.exchange(nullptr, std::memory_order_acq_rel);
    while (newest != nullptr) {  // reverse the list
      Operation* const older = newest->next;
      newest->next = queue_;
      queue_ = newest;
      newest = older;
    }
  }
  Operation* const oldest = queue_;
  queue_ = oldest->next;
  return oldest;
}

void Lane::admit() {
  while (true) {
    if (current_ == nullptr) current_ = take_queued();
    if (current_ == nullptr) return;
    Executor* executor = nullptr;
    if (id_ == LaneId::kPointToPoint) {
      // All sends and receives are under way at once: another rank may need any of them before it makes its own call.
      for (auto& candidate : executors_) {
        if (candidate->idle()) executor = candidate.get();
      }
      if (executor == nullptr) {
        executors_.push_back(std::make_unique<Executor>(rank_, kPointToPointSlot, neighbourhood_, links_));
        executor = executors_.back().get();
      }
    } else {
      // In a fixed order, so that every rank runs the same piece in the same slot. Using more slots than an operation
      // asks for would only use more connections and more cache.
      const size_t slots = std::min<size_t>(current_->in_flight, executors_.size());
      const size_t slot = next_slot_ % slots;
      executor = executors_[slot].get();
      if (!executor->idle()) return;
      next_slot_ = slot + 1;
    }
    executor->start(current_);
    active_.push_back(executor);
    if (current_->bytes >= kWorthTiming && current_->issued == 1) note_begin(now_ns());
    if (current_->issued == current_->pieces) current_ = nullptr;
  }
}

bool Lane::progress() {
  bool moved = false;
  Executor* at_work = nullptr;
  links_->adopt(id_);
  try {
    bool unmatched = false;  // a receive from any rank, which gets the first message: later receives must wait
    for (Executor* executor : active_) {
      if (unmatched && executor->unmatched() != nullptr) continue;
      at_work = executor;
      moved |= executor->progress();
      unmatched |= executor->awaits_any();
    }
  } catch (const LostPeer& lost) {
    Report report = report_on(*at_work->operation());
    report.type = Report::Type::kLost;
    report.kind = ErrorKind::kPeerLost;
    report.peer = lost.peer();
    report.reason = lost.what();
    failure_->suspect(report, at_work->operation()->text());
    return true;
  } catch (const Mismatch& mismatch) {
    // The error shows both calls and blames no rank: only the user knows which call is wrong.
    failure_->fail(ErrorKind::kCollectiveMismatch, -1, explain(mismatch), at_work->operation()->text(), true);
    return true;
  } catch (const Error& error) {
    failure_->fail(error.kind(), -1, error.what(), at_work->operation()->text(), true);
    return true;
  }
  for (size_t i = 0; i < active_.size();) {
    Executor* executor = active_[i];
    if (!executor->finished()) {
      ++i;
      continue;
    }
    Operation* const operation = executor->operation();
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    executor->retire();
    if (++operation->finished == operation->pieces) {
      complete(operation, nullptr);
    } else if (Entry* const entry = operation->own_entry()) {
      entry->pieces_ended.store(static_cast<uint32_t>(operation->finished), std::memory_order_relaxed);
    }
  }
  return moved;
}

void Lane::complete(Operation* operation, const Error* error) {
  // Its owner may use it again as soon as its work is done, so `self` goes last.
  const std::shared_ptr<Operation> self = std::move(operation->self);
  pending_.fetch_sub(1, std::memory_order_seq_cst);
  note_end(operation, error == nullptr);
  if (error != nullptr) {
    if (operation->stage != nullptr) operation->stage->abandon();
    operation->work.complete(*error);
  } else {
    operation->work.complete();
  }
}

void Lane::fail_all() {
  const Error error = failure_->error();
  // Several executors may have the same operation, and so may `current_`. Complete each operation once.
  std::vector<Operation*> ended;
  for (Executor* executor : active_) {
    ended.push_back(executor->operation());
    executor->abandon();
  }
  active_.clear();
  if (current_ != nullptr) ended.push_back(current_);
  current_ = nullptr;
  while (Operation* const operation = take_queued()) ended.push_back(operation);
  std::sort(ended.begin(), ended.end());
  ended.erase(std::unique(ended.begin(), ended.end()), ended.end());
  for (Operation* const operation : ended) complete(operation, &error);
}

// --- waiting ------------------------------------------------------------------------------------------------------

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
  if (caller != nullptr && caller->over(now)) return false;
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
  const bool slept = sleep();
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
    links_->tend(id_);
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
bool Lane::sleep() {
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
    futex_wait(sleep_word_, 1, !failure_->ok() ? kMillisecond : staged ? kStageNap : kSleep);
  } else {
    polled_.assign(1, {wake_fd_.get(), POLLIN, 0});
    for (const auto& [fd, room] : sockets_) {
      polled_.push_back({fd, static_cast<short>(room ? POLLIN | POLLOUT : POLLIN), 0});
    }
    const bool turn_taken = id_ == LaneId::kLarge && links_->turn_taken();
    const Nanoseconds limit = staged ? kStageNap : mixed ? kMixedSleep : turn_taken ? Turn::kPatience : kSleep;
    const timespec longest{0, static_cast<long>(limit)};
    ::ppoll(polled_.data(), polled_.size(), &longest, nullptr);
    eventfd_t ignored = 0;
    if (polled_[0].revents != 0) ::eventfd_read(wake_fd_.get(), &ignored);
  }
  sleep_word_->store(0, std::memory_order_seq_cst);
  return true;
}

}  // namespace ddl
