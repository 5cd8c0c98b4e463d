#include "engine/communicator.h"

#include <unistd.h>

#include <algorithm>
#include <limits>

namespace ddl {

namespace {

bool point_to_point(Collective c) { return c == Collective::kSend || c == Collective::kRecv; }

}  // namespace

Communicator::Communicator(const CommunicatorOptions& options)
    : options_(options),
      owner_pid_(::getpid()),
      neighbourhood_(options.rank, options.size),
      links_(options.rank, neighbourhood_) {
  for (int i = 0; i < kLanes; ++i) {
    lanes_[static_cast<size_t>(i)] = std::make_unique<Lane>(options.rank, static_cast<LaneId>(i), neighbourhood_,
                                                            &links_, &failure_, options.patience);
  }
}

Communicator::~Communicator() { shutdown(); }

void Communicator::add_connection(int peer, int stream, int fd) {
  UniqueFd connection(fd);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (shut_down_) return;  // it came too late to be of use
    links_.add_connection(peer, stream, std::move(connection));
  }
  for (auto& lane : lanes_) lane->wake();
}

void Communicator::install(Collective collective, int root, std::vector<Choice> choices) {
  if (choices.empty()) throw Error(ErrorKind::kInternalError, "no plans to choose from");
  std::lock_guard<std::mutex> lock(mutex_);
  choices_[{collective, root}] = std::move(choices);
}

bool Communicator::installed(Collective collective, int root) const {
  std::lock_guard<std::mutex> lock(mutex_);
  return choices_.count({collective, root}) != 0;
}

void Communicator::check() const {
  failure_.check();
  std::lock_guard<std::mutex> lock(mutex_);
  if (shut_down_) throw Error(ErrorKind::kInvalidState, "the communicator was shut down");
}

Choice Communicator::choose(const Request& request) const {
  const auto found = choices_.find({request.descriptor.collective, request.descriptor.root});
  if (found == choices_.end()) {
    throw Error(ErrorKind::kInternalError, "no plan was installed for " + request.descriptor.text());
  }
  for (const Choice& choice : found->second) {
    if (request.bytes <= choice.max_bytes) return choice;
  }
  return found->second.back();
}

std::shared_ptr<Operation> Communicator::make_operation(Request* request, const Choice& choice) const {
  auto operation = std::make_shared<Operation>();
  operation->plan = choice.plan;
  operation->label = std::move(request->label);
  operation->input = request->input;
  operation->output = request->output;
  operation->count = request->count;
  operation->part_lengths = std::move(request->part_lengths);
  operation->timeout = options_.timeout;
  operation->work = std::make_shared<Work>();
  operation->keep_alive = std::move(request->keep_alive);
  if (request->descriptor.op == ReduceOp::kAverage) operation->divisor = static_cast<uint64_t>(options_.size);

  // Pieces of whole cache lines per block, so that the blocks of a piece never share a line.
  const Plan& plan = *choice.plan;
  const uint64_t element = element_size(request->descriptor.dtype);
  uint64_t longest = operation->count;
  if (!plan.split) {
    if (operation->part_lengths.size() != 1 && operation->part_lengths.size() != plan.parts) {
      throw Error(ErrorKind::kInternalError, "part lengths do not fit the plan of " + request->descriptor.text());
    }
    longest = *std::max_element(operation->part_lengths.begin(), operation->part_lengths.end());
  }
  const uint64_t blocks = plan.split ? 1 : std::max<uint64_t>(1, static_cast<uint64_t>(options_.size));
  const uint64_t line = 64 / element * (plan.split ? plan.parts : 1);
  operation->piece_elements = std::max<uint64_t>(choice.piece_bytes / element / blocks / line, 1) * line;
  if (choice.piece_bytes == 0) operation->piece_elements = std::numeric_limits<uint64_t>::max() / 16;
  operation->pieces = std::max<uint64_t>(1, (longest + operation->piece_elements - 1) / operation->piece_elements);
  return operation;
}

Submitted Communicator::submit(Request request) {
  std::lock_guard<std::mutex> lock(mutex_);
  failure_.check();
  if (shut_down_) throw Error(ErrorKind::kInvalidState, "the communicator was shut down");
  const Choice choice = choose(request);
  Descriptor descriptor = request.descriptor;
  std::shared_ptr<Operation> operation = make_operation(&request, choice);
  const bool pairwise = point_to_point(descriptor.collective);
  // Numbered only now, when nothing can refuse it any more: the numbers match across ranks.
  if (!pairwise) {
    descriptor.sequence = ++sequence_;
    descriptor.history = history_ = extend_history(history_, descriptor);
  }
  operation->descriptor = operation->wire = descriptor;
  if (pairwise) {
    operation->wire.collective = Collective::kSend;
    operation->wire.root = descriptor.collective == Collective::kRecv ? options_.rank : descriptor.root;
  } else {
    remembered_[sequence_ % kRemembered] = {descriptor, operation->label};
  }
  Lane* lane = lanes_[static_cast<size_t>(pairwise ? LaneId::kPointToPoint : choice.lane)].get();
  lane->submit(operation);
  return {operation->work, lane};
}

bool Communicator::wait(const Submitted& submitted, Nanoseconds timeout, const Interrupted& interrupted) {
  const Nanoseconds limit = timeout < 0 ? std::numeric_limits<Nanoseconds>::max() : now_ns() + timeout;
  Nanoseconds asked = 0;
  while (!submitted.work->done()) {
    // A caller with a limit of its own must be able to leave, so it does not drive.
    if (timeout < 0 && submitted.lane->run(*submitted.work, interrupted)) continue;
    const Nanoseconds now = now_ns();
    if (now >= limit) return false;
    if (asked == 0) asked = now;
    submitted.work->sleep(std::min<Nanoseconds>(limit - now, 50 * kMillisecond));
    if (now - asked >= 100 * kMillisecond) {
      asked = now;
      if (interrupted()) fail(ErrorKind::kAborted, options_.rank, "interrupted by a signal while waiting", true);
    }
  }
  return true;
}

void Communicator::fail(ErrorKind kind, int culprit, const std::string& reason, bool tell) {
  // What this rank was in, if it was in anything: the last operation it submitted.
  std::string operation;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (sequence_ > 0) {
      Operation last;
      last.descriptor = remembered_[sequence_ % kRemembered].descriptor;
      last.label = remembered_[sequence_ % kRemembered].label;
      operation = last.text();
    }
  }
  failure_.fail(kind, culprit, reason, operation, tell);
  for (auto& lane : lanes_) lane->wake();
}

std::string Communicator::operation_text(uint64_t sequence) const {
  std::lock_guard<std::mutex> lock(mutex_);
  const Descriptor& descriptor = remembered_[sequence % kRemembered].descriptor;
  return sequence != 0 && descriptor.sequence == sequence ? descriptor.text() : "";
}

uint64_t Communicator::submitted() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return sequence_;
}

bool Communicator::owned() const { return ::getpid() == owner_pid_; }

void Communicator::shutdown() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (shut_down_) return;
    shut_down_ = true;
  }
  failure_.fail(ErrorKind::kAborted, -1, "the communicator was shut down while operations were under way", "", false);
  for (auto& lane : lanes_) {
    lane->drain();
    lane->stop();
  }
  links_.close();
  failure_.close();
}

}  // namespace ddl
