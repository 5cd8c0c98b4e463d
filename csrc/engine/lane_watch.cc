// What a lane checks while it waits: whether a peer has died, whether an operation takes too long; and the messages.
#include <algorithm>
#include <string>

#include "engine/lane.h"

namespace ddl {

namespace {

constexpr Nanoseconds kNextQuestion = 10 * kSecond;

}  // namespace

std::string Lane::explain(const Mismatch& mismatch) const {
  const auto numbered = [](const Descriptor& d) {
    return d.text() + (d.sequence != 0 ? " as operation #" + std::to_string(d.sequence) : "");
  };
  const std::string self = failure_->called(rank_), peer = failure_->called(mismatch.peer());
  const Descriptor &own_call = mismatch.own_call(), &peer_call = mismatch.peer_call();
  if (own_call.collective == Collective::kSend && peer_call.collective == Collective::kSend &&
      own_call.root == peer_call.root && own_call.numbers() != peer_call.numbers()) {  // as both are on the wire
    const bool receives = own_call.root == rank_;
    return "the calls do not match: " + (receives ? peer : self) + " sends " +
           (receives ? peer_call : own_call).numbers() + ", but " + (receives ? self : peer) + " receives " +
           (receives ? own_call : peer_call).numbers() + "; both must be of one type and length";
  }
  const std::string rule = "; all ranks must make the same calls in the same order";
  if (own_call.same_call(peer_call)) {
    return self + " and " + peer + " both called " + numbered(own_call) +
           ", but one of their calls before it did not match (its root, say)" + rule;
  }
  return "the calls do not match: " + self + " called " + numbered(own_call) + " but " + peer + " called " +
         numbered(peer_call) + rule;
}

Report Lane::report_on(const Operation& operation) const {
  Report report;
  report.sequence = operation.descriptor.sequence;
  report.operation = operation.descriptor.text();
  return report;
}

std::string Lane::current_text() const { return active_.empty() ? "" : active_.front()->operation()->text(); }

// How the peer has ended, so that nothing will come from it any more but what it has sent. Null: it has not.
const char* Lane::end_of(const Executor& executor, int peer) const {
  const PeerMemory* memory = neighbourhood_.memory(peer);
  if (memory != nullptr && !memory->alive()) return "its process has ended";
  return failure_->gone(peer) && !executor.hears(peer) ? "it has shut down" : nullptr;
}

// A message from any rank may come as long as one is left.
Lane::Ended Lane::awaited_in_vain(const Executor& executor) const {
  Ended first;
  for (int peer : executor.waiting_for()) {
    const char* const how = end_of(executor, peer);
    if (how == nullptr && executor.awaits_any()) return {};
    if (how != nullptr && first.how == nullptr) first = {peer, how};
  }
  return first;
}

void Lane::check_on_peers() {
  if (!failure_->ok()) return;
  for (const Executor* executor : active_) {
    if (awaited_in_vain(*executor).how == nullptr) continue;
    // The peer may have done its part before it ended. Only what is still missing now will never come.
    progress();
    if (executor->idle() || !failure_->ok()) return;
    const Ended ended = awaited_in_vain(*executor);
    if (ended.how == nullptr) return;
    Report report = report_on(*executor->operation());
    report.type = Report::Type::kLost;
    report.kind = ErrorKind::kPeerLost;
    report.peer = ended.peer;
    report.reason = ended.how;
    failure_->suspect(report, executor->operation()->text());
    return;
  }
}

// The rank that this one waits for may itself wait for another. So this says what this rank sees, and blames nobody.
std::string Lane::overdue(const Operation& operation, const std::vector<int>& missing) const {
  const bool staged = std::any_of(active_.begin(), active_.end(), [&](const Executor* executor) {
    return executor->operation() == &operation && executor->awaits_stage();
  });
  std::string ranks;
  for (int peer : missing) ranks += (ranks.empty() ? "" : ", ") + failure_->called(peer);
  std::string text = "it was not done before its deadline of " + std::to_string(operation.timeout / kMillisecond) +
                     " ms" + (failure_->patience() > 0 ? ", and the job's store did not say who is to blame" : "");
  if (staged) text += "; this rank waits for its GPU, which has not copied the array to the host yet";
  if (!ranks.empty()) text += "; this rank waits for " + ranks + ", which may itself wait for others";
  return text;
}

// There is something new to tell the others.
void Lane::ask_at_once() {
  for (const Executor* executor : active_) executor->operation()->next_question = 0;
}

void Lane::check_deadlines(Nanoseconds now) {
  if (!failure_->ok()) return;
  for (const Executor* executor : active_) {
    Operation& operation = *executor->operation();
    operation.begin_clock(now);
    const Nanoseconds deadline = operation.started + operation.timeout;
    Report report = report_on(operation);
    report.type = Report::Type::kStalled;
    report.kind = ErrorKind::kCollectiveTimeout;
    report.waited = now - operation.started;
    const std::vector<int> missing = executor->waiting_for();
    if (executor->awaits_any()) {  // nobody is to blame, but all may have left
      if (now < deadline) {
        if (now < operation.next_question) continue;
        operation.next_question = now + kNextQuestion;
        failure_->ask_who_has_left(report);
        continue;
      }
      const std::string limit = std::to_string(operation.timeout / kMillisecond) + " ms";
      failure_->fail(ErrorKind::kCollectiveTimeout, -1, "no rank has sent this one a message within " + limit,
                     operation.text(), true);
      return;
    }
    // About a send or receive, only the other end knows. About a collective, all ranks know.
    if (id_ == LaneId::kPointToPoint && !missing.empty()) report.peer = missing.front();
    if (!operation.asked_finally && now >= deadline) {  // not before: a rank that comes in time is not to blame
      operation.asked_finally = report.final = true;
      failure_->question(report, operation.text());
    } else if (!operation.asked_finally && now >= operation.next_question) {
      operation.next_question = now + kNextQuestion;
      failure_->question(report, operation.text());
    } else if (now >= deadline + failure_->patience()) {
      failure_->fail(ErrorKind::kCollectiveTimeout, -1, overdue(operation, missing), operation.text(), true);
      return;
    }
  }
}

}  // namespace ddl
