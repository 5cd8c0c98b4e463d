// The native side of ddl.Communicator: lanes, links, boards and plans of one group of ranks.
//
// Python makes it, tells it the neighbours, brings connections and installs plans. Then any thread submits, but one
// at a time: ranks match operations by their order. The rest is thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/mutex.h"
#include "engine/lane.h"

namespace ddl {

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;
  Nanoseconds timeout = 300 * kSecond;  // of each operation
  Patience patience;
  int connections = 1;     // to each peer, of each stream of the large lane
  bool checksums = false;  // of what goes over TCP and is not encrypted
  int64_t read_from = -1;  // see Neighbourhood
  uint32_t recorded = 64;  // collectives that the recorder remembers, a power of 2; of sends half as many
};

// One line of the selection table: which plan, in which lane, in pieces of which size.
struct Choice {
  uint64_t max_bytes = 0;  // this line is for operations up to this size
  LaneId lane = LaneId::kSmall;
  uint64_t piece_bytes = 0;  // of all blocks together
  uint32_t in_flight = 1;    // pieces, at most
  std::shared_ptr<const Plan> plan;
  std::string name;       // of its algorithm, for people
  uint8_t plan_name = 0;  // see Entry::plan; by install()
};

// Sums over the lanes: a second in which two lanes work counts twice.
struct Totals {
  uint64_t operations = 0;
  Nanoseconds waited = 0, under_way = 0;
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
  Recorder& recorder() { return recorder_; }
  Failure& failure() { return failure_; }
  // Before there is any connection.
  void set_rails(int rails) { links_.set_rails(rails); }
  void set_silence(Nanoseconds limit) { links_.set_silence(limit); }
  // Before any operation: so many threads of this process help with large ones until shutdown (base/helpers.h).
  void set_helpers(int count);
  // Of operations that are submitted from now on.
  Nanoseconds timeout() const { return timeout_.load(std::memory_order_relaxed); }
  void set_timeout(Nanoseconds timeout) { timeout_.store(timeout, std::memory_order_relaxed); }
  void add_connection(int peer, int stream, int fd, std::shared_ptr<RecordSession> encrypted);
  bool connected(int peer, int stream) const { return links_.connected(peer, stream); }

  void install(Collective collective, int root, std::vector<Choice> choices);
  // Makes operations that are submitted from now on use other plans; on all ranks from the same operation on. They
  // need the same connections.
  void replace(Collective collective, int root, std::vector<Choice> choices);
  // How often plans were replaced. An operation that was prepared before (Operation::edition) is prepared anew.
  uint32_t edition() const { return edition_.load(std::memory_order_relaxed); }
  bool installed(Collective collective, int root) const;

  // Messages with data, and bytes, that this rank has sent through links.
  std::pair<uint64_t, uint64_t> traffic() const { return recorder_.sent(); }
  // Of collectives only, which are the same on all ranks.
  Totals collectives() const;

  // Throws the first error, which stays, or InvalidState after shutdown.
  void check() const;
  // Chooses the plan of an operation that the submitter has filled in (see Operation), and cuts it into pieces. It
  // may then be submitted any number of times, one after the other.
  void prepare(Operation* operation) const;
  // Numbers the operation and queues it. The progress thread runs it unless another thread drives already.
  void submit(const std::shared_ptr<Operation>& operation);
  // Submits and waits for the end. This thread drives the lane if no other does. Returns whether the operation is
  // done; false only for a caller that does not sleep.
  bool run(const std::shared_ptr<Operation>& operation, Caller* caller);
  // Waits for what was submitted. Returns whether it is done. Does not throw the operation's error: see Work::check.
  // timeout < 0: the operation's deadline decides.
  bool wait(Operation& operation, Nanoseconds timeout, Caller* caller);

  // Another rank waits: looks whether something that this rank has sent was lost.
  void tend();
  std::vector<int> silent_peers() const { return links_.silent(); }
  void note_unreachable(int peer, bool unreachable) { links_.note_unreachable(peer, unreachable); }
  void fail(ErrorKind kind, int culprit, const std::string& reason, bool tell);
  // The text of this rank's operation number `sequence`. "": not submitted yet, or too long ago.
  std::string operation_text(uint64_t sequence) const;
  // The same for people: with its label. `allreduce #417 "bucket.4" (16777216 x float32, sum)`
  std::string call_text(uint64_t sequence) const;
  // The threads of users that sleep until an operation has ended, without a limit of their own.
  const Sleepers& sleepers() const { return sleepers_; }
  // Whether operation number `sequence` waits for this rank's own data, on its GPU.
  bool awaits_gpu(uint64_t sequence) const;
  uint64_t submitted() const { return recorder_.submitted(); }
  // Whether operations are under way.
  bool busy() const;
  // Fails what is under way, ends the threads and closes the connections. Idempotent.
  void shutdown();
  // False in a forked child: the threads are the parent's, and nothing here may be touched, not even destroyed.
  bool owned() const;

 private:
  std::vector<Choice> checked(std::vector<Choice> choices);
  const Choice& choose(const Operation& operation) const;
  // Called when nothing can refuse the operation any more, so that its number is the same on all ranks.
  void number(Operation* operation) DDL_REQUIRES(lock_);
  Lane& lane_of(const Operation& operation) { return *lanes_[static_cast<size_t>(operation.lane)]; }

  const CommunicatorOptions options_;
  std::atomic<Nanoseconds> timeout_;
  const int owner_pid_;
  Neighbourhood neighbourhood_;
  Sleepers sleepers_;
  Recorder recorder_;
  Failure failure_;
  Links links_;
  std::array<std::unique_ptr<Lane>, kLanes> lanes_;

  std::atomic<bool> shut_down_{false};
  std::atomic<bool> helped_{false};
  mutable SpinLock lock_;
  // By collective and root. Nothing is ever removed: operations point to the plans.
  std::map<std::pair<Collective, int>, std::vector<Choice>> choices_ DDL_GUARDED_BY(lock_);
  std::vector<std::vector<Choice>> replaced_ DDL_GUARDED_BY(lock_);
  std::atomic<uint32_t> edition_{0};
  uint64_t history_ DDL_GUARDED_BY(lock_) = 0;
};

}  // namespace ddl
