#include "engine/communicator.h"

#include <algorithm>
#include <limits>

#include "base/helpers.h"
#include "base/process.h"

namespace ddl {

Communicator::Communicator(const CommunicatorOptions& options)
    : options_(options),
      timeout_(options.timeout),
      owner_pid_(process_id()),
      neighbourhood_(options.rank, options.size, options.read_from),
      sleepers_(options.rank),
      recorder_(options.rank, options.size, options.recorded, std::max<uint32_t>(1, options.recorded / 2)),
      failure_(options.rank, &recorder_),
      links_(options.rank, options.connections, options.checksums, neighbourhood_, &recorder_, &failure_) {
  for (int i = 0; i < kLanes; ++i) {
    const LaneId id = static_cast<LaneId>(i);
    lanes_[static_cast<size_t>(i)] = std::make_unique<Lane>(options.rank, id, neighbourhood_, &links_, &failure_,
                                                            recorder_.lane(id), options.patience);
  }
}

Communicator::~Communicator() { shutdown(); }

void Communicator::add_connection(int peer, int stream, int fd, std::shared_ptr<RecordSession> encrypted) {
  UniqueFd connection(fd);
  if (peer < 0 || peer >= options_.size || peer == options_.rank) {
    throw Error(ErrorKind::kProtocolError,
                "a connection came from rank " + std::to_string(peer) + " of " + std::to_string(options_.size));
  }
  {
    const Lock lock(lock_);
    if (shut_down_.load()) return;  // it came too late
    links_.add_connection(peer, stream, std::move(connection), std::move(encrypted));
  }
  for (auto& lane : lanes_) lane->wake();
}

void Communicator::set_helpers(int count) {
  Helpers::enter(count);
  if (helped_.exchange(true)) Helpers::leave();
}

std::vector<Choice> Communicator::checked(std::vector<Choice> choices) {
  if (choices.empty()) throw Error(ErrorKind::kInternalError, "no plans to choose from");
  for (Choice& choice : choices) {
    choice.plan_name = recorder_.name_plan(choice.name);
    if (choice.in_flight < 1 || choice.in_flight > kLargeSlots) {
      throw Error(ErrorKind::kInternalError, std::to_string(choice.in_flight) + " pieces in flight");
    }
    if (choice.plan == nullptr || choice.plan->rank != options_.rank || choice.plan->size != options_.size) {
      throw Error(ErrorKind::kInternalError, "a plan that is not for rank " + std::to_string(options_.rank) + " of " +
                                                 std::to_string(options_.size));
    }
  }
  return choices;
}

void Communicator::install(Collective collective, int root, std::vector<Choice> choices) {
  std::vector<Choice> fit = checked(std::move(choices));
  const Lock lock(lock_);
  choices_.emplace(std::make_pair(collective, root), std::move(fit));  // the first stays
}

void Communicator::replace(Collective collective, int root, std::vector<Choice> choices) {
  std::vector<Choice> fit = checked(std::move(choices));
  const Lock lock(lock_);
  const auto entry = choices_.find({collective, root});
  if (entry == choices_.end()) throw Error(ErrorKind::kInternalError, "there is no plan to be replaced");
  entry->second.swap(fit);
  replaced_.push_back(std::move(fit));
  edition_.fetch_add(1, std::memory_order_relaxed);
}

bool Communicator::installed(Collective collective, int root) const {
  const Lock lock(lock_);
  return choices_.count({collective, root}) != 0;
}

void Communicator::check() const {
  if (!owned()) {
    throw Error(ErrorKind::kInvalidState,
                "this process was forked from a rank and is none itself; start workers that "
                "communicate as ranks of their own");
  }
  if (shut_down_.load(std::memory_order_acquire)) {
    throw Error(ErrorKind::kInvalidState, "the communicator was shut down");
  }
  failure_.check();
}

const Choice& Communicator::choose(const Operation& operation) const {
  const Lock lock(lock_);
  const auto entry = choices_.find({operation.descriptor.collective, operation.descriptor.root});
  if (entry == choices_.end()) {
    throw Error(ErrorKind::kInternalError, "no plan was installed for " + operation.descriptor.text());
  }
  for (const Choice& choice : entry->second) {
    if (operation.bytes <= choice.max_bytes) return choice;
  }
  return entry->second.back();
}

void Communicator::prepare(Operation* operation) const {
  const Choice& choice = choose(*operation);
  const Plan& plan = *choice.plan;
  operation->plan = &plan;
  operation->edition = edition();
  operation->plan_name = choice.plan_name;
  operation->lane = is_message(operation->descriptor.collective) ? LaneId::kPointToPoint : choice.lane;
  operation->in_flight = choice.in_flight;
  operation->divisor = operation->descriptor.op == ReduceOp::kAverage ? static_cast<uint64_t>(options_.size) : 1;

  // Each block of a piece has whole cache lines, so that two blocks never share one.
  const uint64_t element = element_size(operation->descriptor.element());
  uint64_t longest = operation->count;
  if (!plan.split) {
    if (operation->part_lengths.size() != 1 && operation->part_lengths.size() != plan.parts) {
      throw Error(ErrorKind::kInternalError, "part lengths do not fit the plan of " + operation->descriptor.text());
    }
    longest = *std::max_element(operation->part_lengths.begin(), operation->part_lengths.end());
  }
  if (choice.piece_bytes == 0) {
    operation->piece_elements = std::numeric_limits<uint64_t>::max() / 16;
    operation->pieces = 1;
    return;
  }
  const uint64_t blocks = plan.split ? 1 : std::max<uint64_t>(1, static_cast<uint64_t>(options_.size));
  const uint64_t line = 64 / element * (plan.split ? plan.parts : 1);
  operation->piece_elements = std::max<uint64_t>(choice.piece_bytes / element / blocks / line, 1) * line;
  operation->pieces = std::max<uint64_t>(1, (longest + operation->piece_elements - 1) / operation->piece_elements);
}

void Communicator::number(Operation* operation) {
  check();
  note_submitter();
  operation->rewind();
  operation->timeout = timeout_.load(std::memory_order_relaxed);  // it may have changed since `prepare`
  Descriptor& descriptor = operation->descriptor;
  if (is_message(descriptor.collective)) {
    operation->wire = descriptor;
    operation->wire.collective = Collective::kSend;
    operation->wire.root = descriptor.collective == Collective::kRecv ? options_.rank : descriptor.root;
    recorder_.number(operation);
    return;
  }
  descriptor.sequence = recorder_.submitted() + 1;
  descriptor.history = history_ = extend_history(history_, descriptor);
  operation->wire = descriptor;
  recorder_.number(operation);
}

void Communicator::submit(const std::shared_ptr<Operation>& operation) {
  Lane& lane = lane_of(*operation);
  {
    const Lock lock(lock_);
    number(operation.get());
    Recorder::write(operation.get());
    operation->entry->submitted.store(now_ns(), std::memory_order_relaxed);
    operation->self = operation;
    lane.submit(operation.get());
  }
  lane.kick();
}

bool Communicator::run(const std::shared_ptr<Operation>& operation, Caller* caller) {
  Lane& lane = lane_of(*operation);
  bool drives = false;
  {
    const Lock lock(lock_);
    number(operation.get());
    drives = lane.enter_and_submit(operation, caller->sleeps());
  }
  caller->await(&sleepers_, operation.get());
  if (operation->pieces > 1) caller->let_go();
  if (drives) {
    lane.run(operation->work, caller);
    return operation->work.done();
  }
  lane.kick();
  return caller->sleeps() ? wait(*operation, -1, caller) : operation->work.done();
}

bool Communicator::wait(Operation& operation, Nanoseconds timeout, Caller* caller) {
  if (operation.work.done()) return true;
  caller->let_go();
  if (timeout < 0) caller->await(&sleepers_, &operation);
  const Nanoseconds limit = timeout < 0 ? std::numeric_limits<Nanoseconds>::max() : now_ns() + timeout;
  caller->limit(limit);
  Nanoseconds asked = 0;
  while (!operation.work.done()) {
    const Nanoseconds now = now_ns();
    Lane& lane = lane_of(operation);
    if (now < limit && lane.enter()) {
      lane.run(operation.work, caller);
      continue;
    }
    if (now >= limit) return false;
    if (asked == 0) asked = now;
    operation.work.sleep(std::min<Nanoseconds>(limit - now, 50 * kMillisecond));
    if (now - asked >= 100 * kMillisecond) {
      asked = now;
      caller->note_sleep();
      if (caller->interrupted()) {
        fail(ErrorKind::kAborted, options_.rank, "interrupted by a signal while waiting", true);
      }
    }
  }
  return true;
}

void Communicator::tend() {
  const Lock lock(lock_);
  if (shut_down_.load()) return;
  for (auto& lane : lanes_) lane->tend();
}

void Communicator::fail(ErrorKind kind, int culprit, const std::string& reason, bool tell) {
  // The last operation that this rank submitted, if any.
  std::string operation;
  {
    const Lock lock(lock_);
    Operation last;
    if (recorder_.recall(recorder_.submitted(), &last.descriptor, &last.label)) operation = last.text();
  }
  failure_.fail(kind, culprit, reason, operation, tell);
  for (auto& lane : lanes_) lane->wake();
}

std::string Communicator::call_text(uint64_t sequence) const {
  const Lock lock(lock_);
  Operation operation;
  return recorder_.recall(sequence, &operation.descriptor, &operation.label) ? operation.text() : "";
}

std::string Communicator::operation_text(uint64_t sequence) const {
  const Lock lock(lock_);
  Descriptor descriptor;
  std::string label;
  return recorder_.recall(sequence, &descriptor, &label) ? descriptor.text() : "";
}

bool Communicator::awaits_gpu(uint64_t sequence) const {
  return std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& lane) { return lane->awaits_stage_of(sequence); });
}

bool Communicator::busy() const {
  return std::any_of(lanes_.begin(), lanes_.end(), [](const auto& lane) { return lane->has_work(); });
}

Totals Communicator::collectives() const {
  Totals totals;
  for (const LaneId id : {LaneId::kSmall, LaneId::kLarge}) {
    const Activity& activity = recorder_.lane(id);
    totals.operations += activity.operations.load(std::memory_order_relaxed);
    totals.waited += activity.waited.load(std::memory_order_relaxed);
    totals.under_way += activity.under_way.load(std::memory_order_relaxed);
  }
  return totals;
}

bool Communicator::owned() const { return process_id() == owner_pid_; }

void Communicator::shutdown() {
  {
    const Lock lock(lock_);  // a thread that submits now has either done so, or is refused
    if (shut_down_.exchange(true)) return;
  }
  recorder_.note_close();
  const bool well = failure_.ok();
  failure_.fail(ErrorKind::kAborted, -1, "the communicator was shut down while operations were under way", "", false);
  for (auto& lane : lanes_) {
    lane->drain();
    lane->stop();
  }
  if (well) links_.finish();
  links_.close();
  neighbourhood_.leave();
  failure_.close();
  if (helped_.exchange(false)) Helpers::leave();
}

}  // namespace ddl
