#include "engine/failure.h"

#include <sys/eventfd.h>

#include <utility>

namespace ddl {

namespace {

Report failed_report(ErrorKind kind, int culprit, const std::string& reason) {
  Report report;
  report.kind = kind;
  report.peer = culprit;
  report.reason = reason;
  return report;
}

}  // namespace

Failure::Failure(int rank, Recorder* recorder)
    : rank_(rank), recorder_(recorder), report_fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!report_fd_) throw_errno("eventfd");
}

void Failure::introduce(std::string who, std::vector<std::string> rank_names) {
  const Lock lock(mutex_);
  who_ = std::move(who);
  rank_names_ = std::move(rank_names);
}

std::string Failure::called(int rank) const {
  const Lock lock(mutex_);
  const auto at = static_cast<size_t>(rank);
  const std::string name = at < rank_names_.size() ? rank_names_[at] : "rank " + std::to_string(rank);
  return name.substr(0, name.find(" ("));
}

void Failure::check() const {
  if (failed()) throw error();
}

Error Failure::error() const {
  const Lock lock(mutex_);
  if (!error_) return Error(ErrorKind::kInternalError, "asked for an error where there is none");
  return *error_;
}

void Failure::close() {
  const Lock lock(mutex_);
  agent_.store(false);
  reports_.clear();
  report_fd_.reset();
}

void Failure::post(const Report& report) {
  reports_.push_back(report);
  ::eventfd_write(report_fd_.get(), 1);
}

void Failure::question(const Report& report, const std::string& operation) {
  const Lock lock(mutex_);
  questioned_operation_ = operation;
  if (agent_.load()) post(report);
}

void Failure::ask_who_has_left(const Report& report) {
  const Lock lock(mutex_);
  if (agent_.load()) post(report);
}

void Failure::note_rail(int peer, int rail, bool works, const std::string& why) {
  Report report;
  report.type = Report::Type::kRail;
  report.peer = peer;
  report.rail = rail;
  report.works = works;
  report.reason = why;
  const Lock lock(mutex_);
  if (agent_.load()) post(report);
}

std::optional<Report> Failure::take_report() {
  const Lock lock(mutex_);
  if (reports_.empty()) {
    eventfd_t ignored = 0;
    ::eventfd_read(report_fd_.get(), &ignored);
    return std::nullopt;
  }
  Report report = reports_.front();
  reports_.pop_front();
  return report;
}

void Failure::suspect(const Report& report, const std::string& operation) {
  const Lock lock(mutex_);
  if (state_.load() != State::kOk) return;
  if (!agent_.load()) {
    fail_locked(report.kind, report.peer, report.reason, operation);
    return;
  }
  suspicion_ = report;
  suspected_operation_ = operation;
  suspected_at_ = now_ns();
  state_.store(State::kSuspected, std::memory_order_release);
  post(report);
}

void Failure::note_departure(int peer) {
  const Lock lock(mutex_);
  departed_.emplace(peer, now_ns());
}

bool Failure::gone(int peer) const {
  const Lock lock(mutex_);
  const auto entry = departed_.find(peer);
  return entry != departed_.end() && now_ns() - entry->second >= kArrival;
}

void Failure::settle(Nanoseconds now) {
  const Lock lock(mutex_);
  if (state_.load() != State::kSuspected || now - suspected_at_ < patience()) return;
  fail_locked(suspicion_.kind, suspicion_.peer, suspicion_.reason, suspected_operation_);
  post(failed_report(suspicion_.kind, suspicion_.peer, suspicion_.reason));
}

void Failure::fail(ErrorKind kind, int culprit, const std::string& reason, const std::string& operation, bool tell) {
  const Lock lock(mutex_);
  const State before = state_.load();
  if (before == State::kFailed) return;
  if (tell && agent_.load()) post(failed_report(kind, culprit, reason));
  const bool questioned = kind == ErrorKind::kCollectiveTimeout && !questioned_operation_.empty();
  const bool suspected = before == State::kSuspected;
  fail_locked(kind, culprit, reason,
              suspected    ? suspected_operation_
              : questioned ? questioned_operation_
                           : operation);
}

void Failure::fail_locked(ErrorKind kind, int culprit, const std::string& reason, const std::string& operation) {
  if (state_.load() == State::kFailed) return;
  std::string why;
  const bool lost = kind == ErrorKind::kPeerLost || kind == ErrorKind::kCollectiveTimeout;
  if (lost && culprit == rank_) {
    // This rank is alive, and does not wait for itself.
    why = kind == ErrorKind::kCollectiveTimeout ? "Timed out on the other ranks, which have given this rank up: "
                                                : "the other ranks have given this rank up: ";
  } else if (culprit >= 0 && culprit < static_cast<int>(rank_names_.size())) {
    const char* what = kind == ErrorKind::kPeerLost            ? "lost "
                       : kind == ErrorKind::kCollectiveTimeout ? "Timed out waiting for "
                                                               : "failed because of ";
    why = what + rank_names_[culprit] + ": ";
  }
  why += reason;
  const std::string message = who_ + (operation.empty() ? "" : " " + operation + ":") + " " + why;
  error_.emplace(kind, message, why);
  recorder_->note_failure(std::string(name(kind)) + ": " + message);
  state_.store(State::kFailed, std::memory_order_release);
}

}  // namespace ddl
