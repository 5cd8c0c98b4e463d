// The order of commands: what waits for what, which head of a queue is run next, and what is known when it is done.
#include <algorithm>
#include <chrono>
#include <utility>

#include "driver.h"

namespace fake {

namespace {

uint64_t queue_of(const Stream& stream, int queues) {
  const uint64_t number = queues > 0 ? stream.number % static_cast<uint64_t>(queues) : stream.number;
  return static_cast<uint64_t>(stream.context->device) << 32 | number;
}

// A wait, and what an H200 took behind it (driver 580); then the call blocks.
constexpr int64_t kQueueDepth = 1022;

bool is_done(const std::shared_ptr<Command>& command) { return command->state == Command::State::kDone; }

std::pair<int, int> engine_of(const Command& command) { return {command.stream->context->device, command.engine()}; }

}  // namespace

uint64_t Driver::draw(uint64_t bound) {
  random += 0x9e3779b97f4a7c15;  // splitmix64
  uint64_t x = random;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return (x ^ (x >> 31)) % bound;
}

int64_t Driver::option(const char* name, int64_t otherwise) const {
  const auto entry = options.find(name);
  return entry == options.end() ? otherwise : entry->second;
}

// Whether it is another process's turn on the device: the processes that share one take turns.
bool Driver::is_away() const {
  const int64_t slice = option("slice_us", 0);
  if (slice <= 0) return false;
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::microseconds>(now).count() / slice % 2 != 0;
}

std::shared_ptr<Stream> Driver::add_stream(const std::shared_ptr<Context>& context, bool blocking,
                                           const std::string& name) {
  auto stream = std::make_shared<Stream>();
  stream->number = all_streams.size();
  stream->handle = reinterpret_cast<void*>(0x10000 + 16 * stream->number);
  stream->context = context;
  stream->blocking = blocking;
  stream->actor = ledger.add_actor(name.empty() ? "stream " + std::to_string(stream->number) : name);
  all_streams.push_back(stream);
  return stream;
}

int Driver::enqueue(Thread& thread, const std::shared_ptr<Stream>& stream, std::shared_ptr<Command> command) {
  if (stream->capture != nullptr) {
    stream->joined &= command->marks();  // an event's record adds nothing that others would have to wait for
    return stream->capture->invalidated ? kCaptureInvalidated : kSuccess;
  }
  if (const int code = capture_of_legacy(*stream)) return code;
  command->number = ++commands;
  command->stream = stream;
  command->clock = thread.clock;
  thread.clock.tick(thread.actor);  // what the thread does from now on, the command does not know
  for (const auto& other : all_streams) {
    if (other == stream || other->context != stream->context || other->tail == nullptr) continue;
    const bool waits = (stream->legacy && other->blocking) || (stream->blocking && other->legacy);
    if (waits) command->after.push_back(other->tail);
  }
  stream->tail = command;
  queues[queue_of(*stream, settings.queues)].push_back(std::move(command));
  start_threads();
  changed.notify_all();
  return kSuccess;
}

bool Driver::has_room(const Stream& stream) const {
  const auto queue = queues.find(queue_of(stream, settings.queues));
  const auto most = static_cast<size_t>(option("queue_depth", kQueueDepth));
  return queue == queues.end() || queue->second.size() < most;
}

bool Driver::held_up(const Stream& stream) const {
  const auto queue = queues.find(queue_of(stream, settings.queues));
  if (queue == queues.end() || queue->second.empty()) return false;
  const Command& head = *queue->second.front();
  return head.state == Command::State::kQueued && (paused || !head.ready());
}

bool Driver::done(const Stream& stream, Clock* clock) const {
  if (stream.tail != nullptr && !is_done(stream.tail)) return false;
  if (stream.legacy) {
    for (const auto& other : all_streams) {
      if (other->legacy || !other->blocking || other->context != stream.context) continue;
      if (other->tail != nullptr && !is_done(other->tail)) return false;
      clock->join(other->clock);
    }
  }
  clock->join(stream.clock);
  return true;
}

std::shared_ptr<Command> Driver::pick() {
  polling = false;
  if (failed != 0 || (fail_code != 0 && fail_after == 0)) return nullptr;
  if (is_away()) {
    polling = true;
    return nullptr;
  }
  std::vector<std::shared_ptr<Command>> heads;
  for (const auto& queue : queues) {
    if (queue.second.empty()) continue;
    const std::shared_ptr<Command>& head = queue.second.front();
    if (head->state != Command::State::kQueued) continue;
    if (!std::all_of(head->after.begin(), head->after.end(), is_done)) continue;
    if (engines.count(engine_of(*head)) != 0) continue;
    if (head->ready()) {
      heads.push_back(head);
    } else if (head->polls()) {
      polling = true;
    }
  }
  if (heads.empty()) return nullptr;
  const std::shared_ptr<Command>& chosen = heads[draw(heads.size())];
  chosen->state = Command::State::kRunning;
  if (chosen->engine() != Command::kNoEngine) engines.insert(engine_of(*chosen));
  if (fail_code != 0) --fail_after;
  ++running;
  return chosen;
}

void Driver::begin(const std::shared_ptr<Command>& command) {
  Stream& stream = *command->stream;
  command->clock.join(stream.clock);
  for (const auto& other : command->after) command->clock.join(other->clock);
  command->time = command->clock.tick(stream.actor);
  command->begin(*this);
  stream.clock.join(command->clock);
}

void Driver::finish(const std::shared_ptr<Command>& command) {
  command->stream->clock.join(command->clock);
  engines.erase(engine_of(*command));
  auto& queue = queues[queue_of(*command->stream, settings.queues)];
  queue.pop_front();
  command->state = Command::State::kDone;
  command->after.clear();
  command->stream.reset();
  --running;
  settle();
  changed.notify_all();
}

// The device fails when the last command that it was to execute has ended.
void Driver::settle() {
  if (fail_code == 0 || fail_after != 0 || running != 0 || failed != 0) return;
  failed = fail_code;
  changed.notify_all();
}

size_t Driver::pending() const {
  size_t count = 0;
  for (const auto& queue : queues) count += queue.second.size();
  return count;
}

}  // namespace fake
