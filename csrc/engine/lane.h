// A queue of operations and the slots that run them. A communicator has a lane for small operations, one for large
// ones and one for send/recv, so that none waits behind another.
//
// A lane is driven by one thread at a time: the caller of a blocking operation if nobody else does, else the lane's
// own progress thread, which starts with the first operation that nobody waits for. Whoever drives owns the executors
// and the links of the lane's streams. Waiting is spin (if there is a core to spin on), yield, sleep. No lock, no
// allocation and no system call stands between a submission and its end, if the others are as quick.
#pragma once

#include <poll.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "base/unique_fd.h"
#include "engine/executor.h"
#include "engine/expectation.h"
#include "engine/failure.h"

namespace ddl {

// How long to wait in which way; constant after construction of the communicator.
struct Patience {
  Nanoseconds spin = 50 * kMicrosecond;    // 0 when ranks outnumber cores
  Nanoseconds yield = 200 * kMicrosecond;  // then give the core to others, but stay runnable
};

// What a lane has done so far. Written by its driver; anybody may read, so the numbers may be of different moments.
// They are relaxed: they order nothing.
struct Activity {
  std::atomic<uint64_t> operations{0};    // that ended
  std::atomic<Nanoseconds> waited{0};     // nothing moved, though operations were under way
  std::atomic<Nanoseconds> under_way{0};  // operations were, from the first wait on if they are small
};

// A user's thread that waits, as the engine sees it.
class Caller {
 public:
  virtual ~Caller() = default;
  // The wait will take more than a moment: let others use what this thread holds.
  virtual void let_go() = 0;
  // True if the user has asked to stop (Ctrl-C). Called now and then.
  virtual bool interrupted() = 0;
  // False: where it would have to sleep it leaves, and the progress thread goes on.
  virtual bool sleeps() const = 0;
};

class Lane {
 public:
  Lane(int rank, LaneId id, const Neighbourhood& neighbourhood, Links* links, Failure* failure,
       const Patience& patience);
  ~Lane();
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;

  // Makes the calling thread the lane's driver, if there is none.
  bool enter() { return !driven_.exchange(true, std::memory_order_seq_cst); }
  // Queues; one thread at a time. The operation must outlive its end.
  void submit(Operation* operation);
  // After `submit`: drives until `work` is done, or the caller would have to sleep and does not; and leaves. Only for
  // who has entered.
  void run(const Work& work, Caller* caller);
  // After `submit`: has the progress thread take it, if nobody drives.
  void kick();
  // Looks after what earlier operations have sent, if nobody drives.
  void tend();
  // Something outside changed (a verdict, a new connection): look again.
  void wake();
  // After a failure: returns when every operation has been completed with it.
  void drain();
  // Ends the thread. The executors' shared memory stays until destruction: a slower peer may still read it.
  void stop();
  const Activity& activity() const { return activity_; }
  // Whether operations have been submitted that have not ended.
  bool has_work() const { return pending_.load(std::memory_order_seq_cst) > 0; }

 private:
  struct Waiting {
    Nanoseconds since = 0;
    Nanoseconds last = 0;        // when the clock was asked last
    Nanoseconds looked = 0;      // when the slow checks ran last
    Nanoseconds interrupts = 0;  // when the user was asked last
    Nanoseconds tended = 0;      // when other links were looked after
    int looks = 0;               // how often nothing had moved
    bool late = false;           // it is for somebody who is late
  };

  void thread_main();
  void drive(const Work* until, Caller* caller);
  void leave();
  void admit();
  Operation* take_queued();
  bool progress();
  void fail_all();
  void complete(Operation* operation, const Error* error);
  bool wait(Waiting* waiting, Caller* caller);
  void end_wait(Waiting* waiting);
  void note_end();
  bool sleep();
  bool awaits_neighbour() const;
  void check_on_peers();
  void check_deadlines(Nanoseconds now);
  std::string current_text() const;
  std::string explain(const Mismatch& mismatch) const;
  std::string overdue(const Operation& operation, const std::vector<int>& missing) const;
  Report report_on(const Operation& operation) const;

  const int rank_;
  const LaneId id_;
  const Neighbourhood& neighbourhood_;
  Links* const links_;
  Failure* const failure_;
  const Patience patience_;
  std::atomic<uint32_t>* const sleep_word_;
  UniqueFd wake_fd_;

  std::atomic<bool> driven_{false};
  std::atomic<bool> stop_{false};
  std::atomic<size_t> pending_{0};              // submitted and not completed
  std::atomic<Operation*> submitted_{nullptr};  // a list, the newest first
  std::atomic<uint32_t> kicks_{0};              // what the progress thread sleeps on
  std::atomic<uint32_t> thread_asleep_{0};

  std::mutex starting_;  // guards what follows
  std::thread thread_;
  std::atomic<bool> has_thread_{false};

  // Belong to the driving thread.
  std::vector<std::unique_ptr<Executor>> executors_;
  std::vector<Executor*> active_;  // in the order of admission
  size_t next_slot_ = 0;
  Nanoseconds under_way_since_ = 0;
  Expectation expectation_;
  Activity activity_;
  Polled sockets_;  // reused by every sleep
  std::vector<pollfd> polled_;
  Operation* queue_ = nullptr;    // submitted, the oldest first
  Operation* current_ = nullptr;  // has pieces that are not issued yet
};

}  // namespace ddl
