// The native side of ddl.Communicator: lanes, links, boards and plans of one group of ranks.
//
// Python makes it, tells it the neighbours, brings connections, installs plans; then any thread submits. One thread
// at a time should submit (operations are matched across ranks by their order); the rest is thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/lane.h"

namespace ddl {

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  Nanoseconds timeout = 300 * kSecond;  // of each operation
  Patience patience;
  int connections = 1;  // to each peer, of each stream of the large lane
};

// One line of the selection table: which plan, where, and cut into pieces of what size.
struct Choice {
  uint64_t max_bytes = 0;  // this line serves operations up to this size
  LaneId lane = LaneId::kSmall;
  uint64_t piece_bytes = 0;  // of all blocks together
  uint32_t in_flight = 1;    // pieces, at most
  std::shared_ptr<const Plan> plan;
};

// Of the lanes together, so a second may count once for each.
struct Totals {
  uint64_t operations = 0;
  Nanoseconds waited = 0, under_way = 0;
};

// A lock for a few instructions, without a system call: submissions are not expected to meet.
class SpinLock {
 public:
  void lock();
  void unlock() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

class Communicator {
 public:
  explicit Communicator(const CommunicatorOptions& options);
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  int rank() const { return options_.rank; }
  int size() const { return options_.size; }
  Neighbourhood& neighbourhood() { return neighbourhood_; }
  Failure& failure() { return failure_; }
  // Before there is any connection.
  void set_rails(int rails) { links_.set_rails(rails); }
  // Of operations that are submitted from now on.
  Nanoseconds timeout() const { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(Nanoseconds timeout) { timeout_.store(timeout, std::memory_order_relaxed); }
  void add_connection(int peer, int stream, int fd);
  bool connected(int peer, int stream) const { return links_.connected(peer, stream); }

  void install(Collective collective, int root, std::vector<Choice> choices);
  bool installed(Collective collective, int root) const;

  std::pair<uint64_t, uint64_t> traffic() const { return links_.traffic(); }
  // Of collectives, which are the same on all ranks; of send and recv every rank does what it likes.
  Totals collectives() const;

  // Throws the sticky first error, or InvalidState after shutdown.
  void check() const;
  // Completes what the submitter has filled in (see Operation): chooses the plan and cuts the operation into pieces.
  // One that has been prepared may be submitted any number of times, one after the other.
  void prepare(Operation* operation) const;
  // Numbers the operation and hands it over; the progress thread runs it unless somebody drives already.
  void submit(const std::shared_ptr<Operation>& operation);
  // Submits and waits for the end, driving the lane on this thread if nobody else does. Returns whether it is done:
  // false only for a caller that does not sleep.
  bool run(const std::shared_ptr<Operation>& operation, Caller* caller);
  // Waits for what was submitted. Returns whether it is done; throws nothing of the work's own (see Work::check).
  // timeout < 0: its deadline decides.
  bool wait(Operation& operation, Nanoseconds timeout, Caller* caller);

  // Somebody waits for something: looks whether this rank has lost what it sent.
  void tend();
  void fail(ErrorKind kind, int culprit, const std::string& reason, bool tell);
  // What this rank did as its operation number `sequence`, "" if that is not known (any more, or yet).
  std::string operation_text(uint64_t sequence) const;
  uint64_t submitted() const;
  // Whether operations are under way.
  bool busy() const;
  // Fails what is under way, ends the threads and closes the connections. Idempotent.
  void shutdown();
  // False in a forked child: the threads are the parent's, and nothing here may be touched, not even destroyed.
  bool owned() const;

 private:
  static constexpr size_t kRemembered = 256;  // operations, for diagnosis

  const Choice& choose(const Operation& operation) const;
  void number(Operation* operation);
  Lane& lane_of(const Operation& operation) { return *lanes_[static_cast<size_t>(operation.lane)]; }

  const CommunicatorOptions options_;
  std::atomic<Nanoseconds> timeout_;
  const int owner_pid_;
  Neighbourhood neighbourhood_;
  Failure failure_;
  Links links_;
  std::array<std::unique_ptr<Lane>, kLanes> lanes_;

  std::atomic<bool> shut_down_{false};
  mutable SpinLock lock_;  // guards what follows
  // By collective and root. What was installed stays: operations point to the plans.
  std::map<std::pair<Collective, int>, std::vector<Choice>> choices_;
  struct Remembered {
    Descriptor descriptor;
    std::string label;
  };
  std::array<Remembered, kRemembered> remembered_;
  uint64_t sequence_ = 0;
  uint64_t history_ = 0;
};

}  // namespace ddl
