// Decides and keeps a communicator's first failure.
//
// A failure that this rank sees (a connection closed, a call that does not match) is at first a *suspicion*. The
// agent (ddl/bootstrap/agent.py) asks the store and brings back the verdict, so that all ranks name the same rank,
// even if most of them only see the consequences. Without an agent, or if no verdict comes within `patience`, this
// rank's view becomes the failure. Thread-safe; the fast path reads one atomic.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/mutex.h"
#include "base/unique_fd.h"
#include "engine/recorder.h"

namespace ddl {

// What this rank has to tell the agent.
struct Report {
  enum class Type { kLost, kStalled, kFailed, kRail };
  Type type = Type::kFailed;
  uint64_t sequence = 0;
  ErrorKind kind = ErrorKind::kInternalError;
  int peer = -1;
  std::string reason;      // "connection closed by the peer while receiving"
  std::string operation;   // Descriptor::text of what this rank is in
  bool final = false;      // the deadline is here: a verdict must come
  Nanoseconds waited = 0;  // kStalled: for how long
  int rail = -1;           // kRail: which one to the peer; the job goes on over the others
  bool works = false;      // kRail: again
};

class Failure {
 public:
  // How long a rank that is past its deadline, or has seen a failure, waits for the store's verdict. The store needs
  // about 1.5 s where ranks do not answer. ddl/negotiation waits longer, because it waits for the core.
  static constexpr Nanoseconds kPatience = 3 * kSecond;

  Failure(int rank, Recorder* recorder);
  // `who` is "[rank 3/16 host b]"; `rank_names[r]` is "rank 3 (host b)".
  void introduce(std::string who, std::vector<std::string> rank_names);
  // The name of a rank of this communicator: "rank 3", by its number in the job.
  std::string called(int rank) const;

  bool ok() const { return state_.load(std::memory_order_acquire) == State::kOk; }
  bool failed() const { return state_.load(std::memory_order_acquire) == State::kFailed; }
  // Throws the first error, if there is one.
  void check() const;
  Error error() const;

  // How long to wait for a verdict. On a busy host it may take seconds. What this rank sees is often only a
  // consequence, so it waits, but not for ever.
  Nanoseconds patience() const { return agent_.load() ? kPatience : 0; }
  void suspect(const Report& report, const std::string& operation);
  // Asks the agent about an operation that makes no progress. Changes nothing here.
  void question(const Report& report, const std::string& operation);
  // Asks the agent which ranks have left: this one waits for a message from any. Changes nothing here.
  void ask_who_has_left(const Report& report);
  // A stream to the peer goes over this rail again (`works`), or does not any more (`why`: its connection has ended
  // so; empty: it is silent). Changes nothing here.
  void note_rail(int peer, int rail, bool works, const std::string& why);
  // The verdict, from the agent or from this rank (`tell`: the agent is told). Only the first counts. `operation`:
  // what was under way, unless this rank had asked about, or suspected, another.
  void fail(ErrorKind kind, int culprit, const std::string& reason, const std::string& operation, bool tell);
  // The store has said that the peer has shut down. `gone`: so long ago that the connections that it made are here.
  void note_departure(int peer);
  bool gone(int peer) const;
  // If no verdict came in time, makes the suspicion the failure.
  void settle(Nanoseconds now);

  // Readable while there are reports.
  int report_fd() const { return report_fd_.get(); }
  std::optional<Report> take_report();
  void set_agent(bool listening) { agent_.store(listening); }
  // No more reports.
  void close();

 private:
  enum class State { kOk, kSuspected, kFailed };
  static constexpr Nanoseconds kArrival = 500 * kMillisecond;

  void post(const Report& report) DDL_REQUIRES(mutex_);
  void fail_locked(ErrorKind kind, int culprit, const std::string& reason, const std::string& operation)
      DDL_REQUIRES(mutex_);

  const int rank_;
  Recorder* const recorder_;
  UniqueFd report_fd_;
  std::atomic<State> state_{State::kOk};
  std::atomic<bool> agent_{false};

  mutable Mutex mutex_;
  std::string who_ DDL_GUARDED_BY(mutex_);
  std::vector<std::string> rank_names_ DDL_GUARDED_BY(mutex_);
  std::optional<Error> error_ DDL_GUARDED_BY(mutex_);
  Report suspicion_ DDL_GUARDED_BY(mutex_);
  std::string suspected_operation_ DDL_GUARDED_BY(mutex_);
  std::string questioned_operation_ DDL_GUARDED_BY(mutex_);
  Nanoseconds suspected_at_ DDL_GUARDED_BY(mutex_) = 0;
  std::deque<Report> reports_ DDL_GUARDED_BY(mutex_);
  std::map<int, Nanoseconds> departed_ DDL_GUARDED_BY(mutex_);  // when this rank heard of it, by peer
};

}  // namespace ddl
