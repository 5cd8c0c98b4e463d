// A queue of operations and the slots that run them. A communicator has a lane for small operations, one for large
// ones and one for send/recv, so that none waits behind another.
//
// One thread at a time drives a lane: the caller of a blocking operation, if no other thread does, or the lane's
// progress thread, which starts with the first operation that nobody waits for. The driver owns the executors, and
// the links of the lane's streams. It waits in three ways, one after the other: it spins (if there is a core to spin
// on), yields, sleeps. If the other ranks are as quick, an operation needs no lock, no allocation and no system call.
#pragma once

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/executor.h"
#include "engine/expectation.h"
#include "engine/failure.h"
#include "engine/sleepers.h"

namespace ddl {

// How long to wait in which way. Constant after the communicator is constructed.
struct Patience {
  Nanoseconds spin = 50 * kMicrosecond;    // 0 when ranks outnumber cores
  Nanoseconds yield = 200 * kMicrosecond;  // then let other threads run, but stay runnable
};

// A user's thread that waits for the engine.
class Caller {
 public:
  Caller() = default;
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;
  virtual ~Caller() {
    if (asleep_) sleepers_->leave();
  }
  // It waits for the operation until that ends, and is among `sleepers` once it has waited for long.
  void await(Sleepers* sleepers, const Operation* operation) {
    sleepers_ = sleepers;
    awaited_ = operation;
  }
  void note_sleep() {
    if (asleep_ || sleepers_ == nullptr) return;
    sleepers_->enter(*awaited_);
    asleep_ = true;
  }
  // When it must be able to go on, whatever has happened.
  void limit(Nanoseconds moment) { limit_ = moment; }
  Nanoseconds left(Nanoseconds now) const { return std::max<Nanoseconds>(0, limit_ - now); }
  bool over() const { return limit_ != kNoLimit && now_ns() >= limit_; }
  // The wait will take longer: release what other threads need (Python's lock).
  virtual void let_go() = 0;
  // True if the user has asked to stop (Ctrl-C). Called now and then.
  virtual bool interrupted() = 0;
  // False: instead of sleeping it leaves, and the progress thread goes on.
  virtual bool sleeps() const = 0;

 private:
  Sleepers* sleepers_ = nullptr;
  static constexpr Nanoseconds kNoLimit = std::numeric_limits<Nanoseconds>::max();
  Nanoseconds limit_ = kNoLimit;
  const Operation* awaited_ = nullptr;
  bool asleep_ = false;
};

class Lane {
 public:
  Lane(int rank, LaneId id, const Neighbourhood& neighbourhood, Links* links, Failure* failure, Activity* activity,
       const Patience& patience);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Makes the calling thread the lane's driver, if there is none.
  bool enter() DDL_TRY_ACQUIRE(true, driver_) { return driver_.enter(); }
  // Queues; one thread at a time. The operation must outlive its end.
  void submit(Operation* operation);
  // Both. The operation keeps itself alive, unless this thread drives the lane until it ends. (Not checked: the
  // analysis does not follow a role that is held on one of two branches.)
  bool enter_and_submit(const std::shared_ptr<Operation>& operation, bool until_its_end)
      DDL_TRY_ACQUIRE(true, driver_) DDL_NOT_CHECKED;
  // After `submit`: drives until `work` is done, or until a caller that does not sleep would have to; then leaves.
  void run(const Work& work, Caller* caller) DDL_RELEASE(driver_);
  // After `submit`: wakes the progress thread, if no thread drives.
  void kick();
  // Looks after what earlier operations have sent, if no thread drives.
  void tend();
  // Makes the driver look again: something outside has changed (a verdict, a new connection).
  void wake();
  // After a failure: returns when every operation has ended with it.
  void drain();
  // Ends the thread. The executors' shared memory stays until destruction: a slow peer may still read it.
  void stop();
  // Whether that operation waits for this rank's own data, which its GPU has not brought yet. Any thread may ask.
  bool awaits_stage_of(uint64_t sequence) const {
    return staged_sequence_.load(std::memory_order_relaxed) == sequence && sequence != 0;
  }
  // Whether operations have been submitted that have not ended.
  bool has_work() const { return pending_.load(std::memory_order_seq_cst) > 0; }

 private:
  struct Waiting {
    Nanoseconds since = 0;
    Nanoseconds last = 0;        // when the clock was read last
    Nanoseconds looked = 0;      // when the slow checks were made last
    Nanoseconds interrupts = 0;  // when the user was asked last
    Nanoseconds tended = 0;      // when other links were looked after last
    int looks = 0;               // how often nothing moved
    bool late = false;           // it waits for a late rank
  };

  void thread_main();
  void drive(const Work* until, Caller* caller) DDL_REQUIRES(driver_);
  void leave() DDL_RELEASE(driver_);
  void admit() DDL_REQUIRES(driver_);
  Operation* take_queued() DDL_REQUIRES(driver_);
  bool progress() DDL_REQUIRES(driver_);
  void fail_all() DDL_REQUIRES(driver_);
  void complete(Operation* operation, const Error* error) DDL_REQUIRES(driver_);
  bool wait(Waiting* waiting, Caller* caller) DDL_REQUIRES(driver_);
  void end_wait(Waiting* waiting) DDL_REQUIRES(driver_);
  static void record(Operation* operation);
  void note_begin(Nanoseconds now) DDL_REQUIRES(driver_);
  void note_end(Operation* operation, bool well) DDL_REQUIRES(driver_);
  void note_awaited(const Executor& executor) DDL_REQUIRES(driver_);
  bool sleep(Nanoseconds longest) DDL_REQUIRES(driver_);
  bool awaits_neighbour() const DDL_REQUIRES(driver_);
  // A rank that a piece waits for in vain, and how it has ended; null: there is none.
  struct Ended {
    int peer = -1;
    const char* how = nullptr;
  };
  const char* end_of(const Executor& executor, int peer) const;
  Ended awaited_in_vain(const Executor& executor) const;
  void check_on_peers() DDL_REQUIRES(driver_);
  void check_deadlines(Nanoseconds now) DDL_REQUIRES(driver_);
  void ask_at_once() DDL_REQUIRES(driver_);
  std::string current_text() const DDL_REQUIRES(driver_);
  std::string explain(const Mismatch& mismatch) const;
  std::string overdue(const Operation& operation, const std::vector<int>& missing) const DDL_REQUIRES(driver_);
  Report report_on(const Operation& operation) const;

  const int rank_;
  const LaneId id_;
  const Neighbourhood& neighbourhood_;
  Links* const links_;
  Failure* const failure_;
  Activity* const activity_;  // written by the driver
  const Patience patience_;
  std::atomic<uint32_t>* const sleep_word_;
  UniqueFd wake_fd_;

  Role driver_;
  std::atomic<bool> stop_{false};
  std::atomic<size_t> pending_{0};              // submitted and not completed
  std::atomic<Operation*> submitted_{nullptr};  // a list, the newest first
  std::atomic<uint32_t> kicks_{0};              // what the progress thread sleeps on
  std::atomic<uint32_t> thread_asleep_{0};

  Mutex starting_;
  std::thread thread_ DDL_GUARDED_BY(starting_);
  std::atomic<bool> has_thread_{false};

  std::atomic<uint64_t> staged_sequence_{0};  // of an operation that has waited for its stage; written by the driver
  HandoverChoice handovers_ DDL_GUARDED_BY(driver_){patience_.spin > 0};
  std::vector<std::unique_ptr<Executor>> executors_ DDL_GUARDED_BY(driver_);
  std::vector<Executor*> active_ DDL_GUARDED_BY(driver_);  // in the order of admission
  size_t next_slot_ DDL_GUARDED_BY(driver_) = 0;
  Expectation expectation_ DDL_GUARDED_BY(driver_);
  Polled sockets_ DDL_GUARDED_BY(driver_);  // reused by every sleep
  std::vector<pollfd> polled_ DDL_GUARDED_BY(driver_);
  Operation* queue_ DDL_GUARDED_BY(driver_) = nullptr;    // submitted, the oldest first
  Operation* current_ DDL_GUARDED_BY(driver_) = nullptr;  // has pieces that are not issued yet
};

}  // namespace ddl
