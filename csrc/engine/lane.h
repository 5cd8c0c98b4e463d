// A queue of operations and the slots that run them. A communicator has a lane for small operations, one for large
// ones and one for send/recv, so that none waits behind another.
//
// A lane is driven by one thread at a time: the caller of a blocking operation if nobody else does, else the lane's
// own progress thread, which starts with the first operation that nobody waits for. Whoever drives owns the executors
// and the links of the lane's streams. Waiting is spin (if there is a core to spin on), yield, sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "engine/executor.h"
#include "engine/failure.h"

namespace ddl {

// How long to wait in which way; constant after construction of the communicator.
struct Patience {
  Nanoseconds spin = 50 * kMicrosecond;    // 0 when ranks outnumber cores
  Nanoseconds yield = 200 * kMicrosecond;  // then give the core to others, but stay runnable
};

// True if the user has asked to stop (Ctrl-C). Called now and then while a user's thread waits.
using Interrupted = std::function<bool()>;

class Lane {
 public:
  Lane(int rank, LaneId id, const Neighbourhood& neighbourhood, Links* links, Failure* failure,
       const Patience& patience);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Queues. Then either `run`, or `kick` for the progress thread to take it.
  void submit(const std::shared_ptr<Operation>& operation);
  void kick();
  // Drives the lane on this thread until `work` is done; false if another thread is driving already.
  bool run(const Work& work, const Interrupted& interrupted);
  // Something outside changed (a verdict, a new connection): look again.
  void wake();
  // After a failure: returns when every operation has been completed with it.
  void drain();
  // Ends the thread. The executors' shared memory stays until destruction: a slower peer may still read it.
  void stop();

 private:
  struct Waiting {
    Nanoseconds since = 0;
    Nanoseconds looked = 0;      // when the slow checks ran last
    Nanoseconds interrupts = 0;  // when the user was asked last
  };

  void thread_main();
  void drive(const Work* until, const Interrupted* interrupted);
  bool has_work() const { return pending_.load(std::memory_order_acquire) > 0; }
  void admit();
  void begin(Executor* executor, const std::shared_ptr<Operation>& operation);
  std::shared_ptr<Operation> take_queued();
  bool progress();
  void fail_all();
  void complete(const std::shared_ptr<Operation>& operation, const Error* error);
  void wait(Waiting* waiting, const Interrupted* interrupted);
  void sleep();
  void check_on_peers(Nanoseconds now);
  void check_deadlines(Nanoseconds now);
  std::string current_text() const;
  std::string explain(const Mismatch& mismatch) const;
  Report report_on(const Operation& operation) const;

  const int rank_;
  const LaneId id_;
  const Neighbourhood& neighbourhood_;
  Links* const links_;
  Failure* const failure_;
  const Patience patience_;
  std::atomic<uint32_t>* const sleep_word_;
  UniqueFd wake_fd_;

  // Own synchronisation.
  std::atomic<size_t> pending_{0};  // submitted and not completed
  std::atomic<size_t> queued_{0};

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Operation>> queue_;
  bool driven_ = false;
  bool stop_ = false;
  std::thread thread_;

  // Belong to the driving thread.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<Executor*> active_;  // in the order of admission
  size_t next_slot_ = 0;
  std::shared_ptr<Operation> current_;  // has pieces that are not issued yet
};

}  // namespace ddl
