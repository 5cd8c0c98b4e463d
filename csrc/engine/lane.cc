#include "engine/lane.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <string>

#include "base/wake.h"

namespace ddl {

namespace {

constexpr Nanoseconds kSleep = 20 * kMillisecond;  // longest sleep: peers are looked after this often
constexpr Nanoseconds kMixedSleep = kMillisecond;  // when both sockets and shared memory are waited for
constexpr Nanoseconds kSlowChecks = 5 * kMillisecond;
constexpr Nanoseconds kInterruptChecks = 100 * kMillisecond;
constexpr Nanoseconds kFirstQuestion = kSecond;  // an operation that takes longer is asked about
constexpr Nanoseconds kNextQuestion = 10 * kSecond;
constexpr Nanoseconds kVerdict = 400 * kMillisecond;  // how long before its deadline somebody must be blamed

size_t slots_of(LaneId id) { return id == LaneId::kLarge ? kLargeSlots : 1; }
int first_slot(LaneId id) { return id == LaneId::kSmall ? 0 : id == LaneId::kLarge ? 1 : kPointToPointSlot; }

}  // namespace

Lane::Lane(int rank, LaneId id, const Neighbourhood& neighbourhood, Links* links, Failure* failure,
           const Patience& patience)
    : rank_(rank),
      id_(id),
      neighbourhood_(neighbourhood),
      links_(links),
      failure_(failure),
      patience_(patience),
      sleep_word_(&neighbourhood.mine()->lanes[static_cast<size_t>(id)].sleeping),
      wake_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!wake_fd_) throw_errno("eventfd");
  for (size_t i = 0; i < slots_of(id); ++i) {
    executors_.push_back(
        std::make_unique<Executor>(rank_, first_slot(id) + static_cast<int>(i), neighbourhood_, links_));
  }
}

Lane::~Lane() { stop(); }

void Lane::submit(const std::shared_ptr<Operation>& operation) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (stop_) throw Error(ErrorKind::kInvalidState, "the communicator was shut down");
  queue_.push_back(operation);
  queued_.store(queue_.size(), std::memory_order_release);
  pending_.fetch_add(1, std::memory_order_acq_rel);
}

void Lane::kick() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (driven_) {
    lock.unlock();
    wake();
    return;
  }
  if (!thread_.joinable() && !stop_) thread_ = std::thread([this] { thread_main(); });
  changed_.notify_one();
}

void Lane::wake() {
  full_fence(sleep_word_);
  if (sleep_word_->load(std::memory_order_seq_cst) == 0) return;
  wake_if_sleeping(sleep_word_);
  ::eventfd_write(wake_fd_.get(), 1);
}

void Lane::drain() {
  while (has_work()) {
    bool mine = false;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!driven_) mine = driven_ = true;
    }
    if (!mine) {
      wake();
      ::usleep(1000);
      continue;
    }
    fail_all();
    std::lock_guard<std::mutex> lock(mutex_);
    driven_ = false;
  }
}

void Lane::stop() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    changed_.notify_all();
  }
  wake();
  if (thread_.joinable()) thread_.join();
  wake_fd_.reset();
}

bool Lane::run(const Work& work, const Interrupted& interrupted) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (driven_) return false;
    driven_ = true;
  }
  drive(&work, &interrupted);
  bool more = false;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    driven_ = false;
    more = has_work();
  }
  if (more) kick();
  return true;
}

void Lane::thread_main() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return stop_ || (!driven_ && has_work()); });
    if (stop_) return;
    driven_ = true;
    lock.unlock();
    drive(nullptr, nullptr);
    lock.lock();
    driven_ = false;
  }
}

// --- driving ------------------------------------------------------------------------------------------------------

void Lane::drive(const Work* until, const Interrupted* interrupted) {
  Waiting waiting;
  while (until != nullptr ? !until->done() : has_work()) {
    if (failure_->failed()) {
      fail_all();
      continue;
    }
    if (failure_->ok()) {
      admit();
      if (progress()) {
        waiting.since = 0;
        continue;
      }
    }
    wait(&waiting, interrupted);
  }
}

std::shared_ptr<Operation> Lane::take_queued() {
  if (queued_.load(std::memory_order_acquire) == 0) return nullptr;
  std::lock_guard<std::mutex> lock(mutex_);
  if (queue_.empty()) return nullptr;
  std::shared_ptr<Operation> operation = std::move(queue_.front());
  queue_.pop_front();
  queued_.store(queue_.size(), std::memory_order_release);
  return operation;
}

void Lane::begin(Executor* executor, const std::shared_ptr<Operation>& operation) {
  if (operation->issued == 0) {
    operation->started = now_ns();
    operation->next_question = operation->started + std::min(kFirstQuestion, operation->timeout / 2);
  }
  executor->start(operation);
  active_.push_back(executor);
}

void Lane::admit() {
  while (true) {
    if (!current_) current_ = take_queued();
    if (!current_) return;
    Executor* executor = nullptr;
    if (id_ == LaneId::kPointToPoint) {
      // Every send and receive is under way at once: one may be what another rank needs before it serves ours.
      for (auto& candidate : executors_) {
        if (candidate->idle()) executor = candidate.get();
      }
      if (executor == nullptr) {
        executors_.push_back(std::make_unique<Executor>(rank_, kPointToPointSlot, neighbourhood_, links_));
        executor = executors_.back().get();
      }
    } else {
      // Strictly in turn, so that every rank runs the same piece in the same slot.
      executor = executors_[next_slot_].get();
      if (!executor->idle()) return;
      next_slot_ = (next_slot_ + 1) % executors_.size();
    }
    begin(executor, current_);
    if (current_->issued == current_->pieces) current_.reset();
  }
}

bool Lane::progress() {
  bool moved = false;
  Executor* at_work = nullptr;
  links_->adopt(id_);
  try {
    for (Executor* executor : active_) {
      at_work = executor;
      moved |= executor->progress();
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
    failure_->fail(ErrorKind::kCollectiveMismatch, mismatch.peer(), explain(mismatch), at_work->operation()->text(),
                   true);
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
    const std::shared_ptr<Operation> operation = executor->operation();
    active_.erase(active_.begin() + static_cast<std::ptrdiff_t>(i));
    executor->retire();
    if (++operation->finished == operation->pieces) complete(operation, nullptr);
  }
  return moved;
}

void Lane::complete(const std::shared_ptr<Operation>& operation, const Error* error) {
  if (operation->work->done()) return;  // failed already, as part of several executors
  operation->keep_alive.reset();
  pending_.fetch_sub(1, std::memory_order_acq_rel);
  if (error != nullptr) {
    operation->work->complete(*error);
  } else {
    operation->work->complete();
  }
}

void Lane::fail_all() {
  const Error error = failure_->error();
  for (Executor* executor : active_) {
    const std::shared_ptr<Operation> operation = executor->operation();
    executor->abandon();
    complete(operation, &error);
  }
  active_.clear();
  if (current_) complete(current_, &error);
  current_.reset();
  while (const std::shared_ptr<Operation> operation = take_queued()) complete(operation, &error);
}

// --- waiting ------------------------------------------------------------------------------------------------------

void Lane::wait(Waiting* waiting, const Interrupted* interrupted) {
  const Nanoseconds now = now_ns();
  if (waiting->since == 0) waiting->since = waiting->looked = waiting->interrupts = now;
  const Nanoseconds waited = now - waiting->since;
  // The progress thread shares its core with the user's computation, so it never spins.
  const Nanoseconds spin = interrupted != nullptr ? patience_.spin : 0;
  if (failure_->ok() && waited < spin) {
    for (int i = 0; i < 8; ++i) cpu_pause();
    return;
  }
  if (failure_->ok() && waited < spin + patience_.yield) {
    ::sched_yield();
    return;
  }
  sleep();
  const Nanoseconds after = now_ns();
  if (after - waiting->looked >= kSlowChecks) {
    waiting->looked = after;
    check_on_peers(after);
    check_deadlines(after);
    failure_->settle(after);
  }
  if (interrupted != nullptr && after - waiting->interrupts >= kInterruptChecks) {
    waiting->interrupts = after;
    if ((*interrupted)()) {
      failure_->fail(ErrorKind::kAborted, rank_, "interrupted by a signal while waiting", current_text(), true);
    }
  }
}

void Lane::sleep() {
  sleep_word_->store(1, std::memory_order_seq_cst);
  full_fence(sleep_word_);
  // Look once more: what changed before the word was raised woke nobody.
  if (failure_->failed() || queued_.load(std::memory_order_acquire) > 0 || (failure_->ok() && progress())) {
    sleep_word_->store(0, std::memory_order_seq_cst);
    return;
  }
  std::vector<std::pair<int, bool>> sockets;
  for (const Executor* executor : active_) executor->poll_fds(&sockets);
  if (sockets.empty() || !failure_->ok()) {
    futex_wait(sleep_word_, 1, failure_->ok() ? kSleep : kMillisecond);
  } else {
    std::vector<pollfd> entries = {{wake_fd_.get(), POLLIN, 0}};
    for (const auto& [fd, room] : sockets)
      entries.push_back({fd, static_cast<short>(room ? POLLIN | POLLOUT : POLLIN), 0});
    const Nanoseconds limit = neighbourhood_.neighbours().empty() ? kSleep : kMixedSleep;
    ::poll(entries.data(), entries.size(), static_cast<int>(limit / kMillisecond));
    eventfd_t ignored = 0;
    if (entries[0].revents != 0) ::eventfd_read(wake_fd_.get(), &ignored);
  }
  sleep_word_->store(0, std::memory_order_seq_cst);
}

std::string Lane::explain(const Mismatch& mismatch) const {
  const auto numbered = [](const Descriptor& d) {
    return d.text() + (d.sequence != 0 ? " as operation #" + std::to_string(d.sequence) : "");
  };
  const std::string peer = "rank " + std::to_string(mismatch.peer());
  const std::string rule = "; all ranks must make the same calls in the same order";
  if (mismatch.mine().same_call(mismatch.theirs())) {
    return "rank " + std::to_string(rank_) + " and " + peer + " both called " + numbered(mismatch.mine()) +
           ", but one of their calls before it did not match (its root, say)" + rule;
  }
  return "the calls do not match: rank " + std::to_string(rank_) + " called " + numbered(mismatch.mine()) + " but " +
         peer + " called " + numbered(mismatch.theirs()) + rule;
}

Report Lane::report_on(const Operation& operation) const {
  Report report;
  report.sequence = operation.descriptor.sequence;
  report.operation = operation.descriptor.text();
  return report;
}

std::string Lane::current_text() const { return active_.empty() ? "" : active_.front()->operation()->text(); }

void Lane::check_on_peers(Nanoseconds) {
  if (!failure_->ok()) return;
  for (Executor* executor : active_) {
    for (int peer : executor->waiting_for()) {
      const PeerMemory* memory = neighbourhood_.memory(peer);
      if (memory == nullptr || memory->alive()) continue;
      // It may have done its part and then left: only what is still missing now will never come.
      progress();
      if (executor->idle()) return;
      const std::vector<int> still = executor->waiting_for();
      if (std::find(still.begin(), still.end(), peer) == still.end()) return;
      Report report = report_on(*executor->operation());
      report.type = Report::Type::kLost;
      report.kind = ErrorKind::kPeerLost;
      report.peer = peer;
      report.reason = "its process has ended";
      failure_->suspect(report, executor->operation()->text());
      return;
    }
  }
}

void Lane::check_deadlines(Nanoseconds now) {
  if (!failure_->ok()) return;
  for (const Executor* executor : active_) {
    Operation& operation = *executor->operation();
    const Nanoseconds deadline = operation.started + operation.timeout;
    Report report = report_on(operation);
    report.type = Report::Type::kStalled;
    report.kind = ErrorKind::kCollectiveTimeout;
    const std::vector<int> missing = executor->waiting_for();
    // Of a send or receive only its other end can be asked; of a collective, all.
    if (id_ == LaneId::kPointToPoint && !missing.empty()) report.peer = missing.front();
    if (!operation.asked_finally && now >= deadline - std::min(kVerdict, operation.timeout / 3)) {
      operation.asked_finally = report.final = true;
      failure_->question(report, operation.text());
    } else if (!operation.asked_finally && now >= operation.next_question) {
      operation.next_question = now + kNextQuestion;
      failure_->question(report, operation.text());
    } else if (now >= deadline) {
      std::string ranks;
      for (int peer : missing) ranks += (ranks.empty() ? "" : ", ") + std::to_string(peer);
      failure_->fail(ErrorKind::kCollectiveTimeout, missing.empty() ? -1 : missing.front(),
                     "nothing moved before the deadline of " + std::to_string(operation.timeout / kMillisecond) +
                         " ms; still waiting for rank(s) " + ranks,
                     operation.text(), true);
      return;
    }
  }
}

}  // namespace ddl
