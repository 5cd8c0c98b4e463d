#include "engine/lane.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>

#include "base/schedule.h"
#include "base/wake.h"

namespace ddl {

namespace {

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
        std::make_unique<Executor>(rank_, first_slot(id) + static_cast<int>(i), neighbourhood_, links_, &handovers_));
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
        executors_.push_back(
            std::make_unique<Executor>(rank_, kPointToPointSlot, neighbourhood_, links_, &handovers_));
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
  // Before the user has the arrays again.
  if (!ended.empty()) neighbourhood_.take_back();
  active_.clear();
  if (current_ != nullptr) ended.push_back(current_);
  current_ = nullptr;
  while (Operation* const operation = take_queued()) ended.push_back(operation);
  std::sort(ended.begin(), ended.end());
  ended.erase(std::unique(ended.begin(), ended.end()), ended.end());
  for (Operation* const operation : ended) complete(operation, &error);
}

}  // namespace ddl
