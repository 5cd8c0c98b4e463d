// The native side of ddl.Communicator: lanes, links, boards and plans of one group of ranks.
//
// Python makes it, tells it the neighbours, brings connections, installs plans; then any thread submits. One thread
// at a time should submit (operations are matched across ranks by their order); the rest is thread-safe.
#pragma once

#include <array>
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
};

// One line of the selection table: which plan, where, and cut into pieces of what size.
struct Choice {
  uint64_t max_bytes = 0;  // this line serves operations up to this size
  LaneId lane = LaneId::kSmall;
  uint64_t piece_bytes = 0;  // of all blocks together
  std::shared_ptr<const Plan> plan;
};

struct Request {
  Descriptor descriptor;  // sequence is given by submit
  std::string label;
  const char* input = nullptr;
  char* output = nullptr;
  uint64_t count = 0;
  std::vector<uint64_t> part_lengths;
  uint64_t bytes = 0;  // by which the plan is chosen: the same on all ranks
  std::shared_ptr<void> keep_alive;
};

// A submitted operation, for whoever waits.
struct Submitted {
  std::shared_ptr<Work> work;
  Lane* lane = nullptr;
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
  void add_connection(int peer, int stream, int fd);
  bool connected(int peer, int stream) const { return links_.connected(peer, stream); }

  void install(Collective collective, int root, std::vector<Choice> choices);
  bool installed(Collective collective, int root) const;

  std::pair<uint64_t, uint64_t> traffic() const { return links_.traffic(); }

  // Throws the sticky first error, or InvalidState after shutdown.
  void check() const;
  Submitted submit(Request request);
  void start(const Submitted& submitted) { submitted.lane->kick(); }
  // Returns whether it is done; throws nothing of the work's own (see Work::check). timeout < 0: its deadline
  // decides.
  bool wait(const Submitted& submitted, Nanoseconds timeout, const Interrupted& interrupted);

  void fail(ErrorKind kind, int culprit, const std::string& reason, bool tell);
  // What this rank did as its operation number `sequence`, "" if that is not known (any more, or yet).
  std::string operation_text(uint64_t sequence) const;
  uint64_t submitted() const;
  // Fails what is under way, ends the threads and closes the connections. Idempotent.
  void shutdown();
  // False in a forked child: the threads are the parent's, and nothing here may be touched, not even destroyed.
  bool owned() const;

 private:
  static constexpr size_t kRemembered = 256;  // operations, for diagnosis

  std::shared_ptr<Operation> make_operation(Request* request, const Choice& choice) const;
  Choice choose(const Request& request) const;

  const CommunicatorOptions options_;
  const int owner_pid_;
  Neighbourhood neighbourhood_;
  Failure failure_;
  Links links_;
  std::array<std::unique_ptr<Lane>, kLanes> lanes_;

  mutable std::mutex mutex_;  // guards what follows
  std::map<std::pair<Collective, int>, std::vector<Choice>> choices_;
  struct Remembered {
    Descriptor descriptor;
    std::string label;
  };
  std::array<Remembered, kRemembered> remembered_;
  uint64_t sequence_ = 0;
  uint64_t history_ = 0;
  bool shut_down_ = false;
};

}  // namespace ddl
