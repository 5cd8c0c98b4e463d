// How the driver is reset, which threads it knows, and how a call begins.
#include "driver.h"

#include <chrono>

namespace fake {

thread_local bool runs_host_functions = false;

void Driver::reset(const Settings& next) {
  std::unique_lock<std::mutex> lock(mutex);
  stopping = true;
  changed.notify_all();
  std::vector<std::thread> ended;
  ended.swap(runners_);
  lock.unlock();
  for (std::thread& runner : ended) runner.join();
  lock.lock();
  while (blocked > 0) changed.wait_for(lock, std::chrono::milliseconds(1));
  const auto keep = options.find("keep_registrations");
  const bool keeps = keep != options.end() && keep->second != 0;
  for (auto& queue : queues) {
    for (auto& command : queue.second) command->stream.reset();  // which has it as its tail
  }
  queues.clear();
  functions.clear();
  captures.clear();
  threads.clear();
  events.clear();
  streams.clear();
  all_streams.clear();
  for (const auto& context : contexts) context->legacy.reset();
  contexts.clear();
  primary.clear();
  if (!keeps) registrations.clear();
  unmap_all();
  ledger = Ledger();
  calls.clear();
  refusals.clear();
  options.clear();
  if (keeps) options["keep_registrations"] = 1;
  initialised = false;
  failed = fail_code = 0;
  fail_after = -1;
  numbers = commands = 0;
  running = in_functions = 0;
  engines.clear();
  full_queues = 0;
  paused = stopping = polling = false;
  settings = next;
  random = next.seed;
  ++generation;
}

Thread& Driver::thread() {
  struct Known {
    const Driver* driver = nullptr;
    uint64_t generation = 0;
    Thread* thread = nullptr;
  };
  static thread_local Known known;
  if (known.driver != this || known.generation != generation) {
    threads.push_back(std::make_unique<Thread>());
    Thread& thread = *threads.back();
    thread.number = threads.size();
    thread.actor = ledger.add_actor("host thread " + std::to_string(thread.number));
    thread.clock.tick(thread.actor);
    known = {this, generation, &thread};
  }
  return *known.thread;
}

Call::Call(const char* entry, Needs needs) : entry(entry) {
  if (Driver::exited()) {
    code = kDeinitialized;
    return;
  }
  driver = Driver::usable();
  if (driver == nullptr) {
    code = kNotInitialized;
    return;
  }
  if (runs_host_functions) {
    const std::lock_guard<std::mutex> lock(driver->mutex);
    driver->complain(std::string(entry) + " was called by a host function");
    code = kNotPermitted;
    return;
  }
  api_ = std::unique_lock<std::mutex>(driver->api);
  lock_ = std::unique_lock<std::mutex>(driver->mutex);
  thread = &driver->thread();
  ++driver->calls[entry];
  const auto refusal = driver->refusals.find(entry);
  if (refusal != driver->refusals.end() && refusal->second.count != 0) {
    if (refusal->second.count > 0) --refusal->second.count;
    code = refusal->second.code;
    return;
  }
  if (!thread->contexts.empty()) context = thread->contexts.back();
  code = missing(needs);
  ended = code != kSuccess;
}

int Call::missing(Needs needs) const {
  if (needs == Needs::kNothing) return kSuccess;
  if (!driver->initialised) return kNotInitialized;
  if (driver->failed != 0) return driver->failed;
  if (needs == Needs::kDriver) return kSuccess;
  if (context == nullptr) return kInvalidContext;
  return context->alive ? kSuccess : kContextIsDestroyed;
}

std::shared_ptr<Stream> Call::stream(void* handle) {
  const auto number = reinterpret_cast<uintptr_t>(handle);
  if (number == 0 || number == kLegacyStream) return context->legacy;
  if (number == kPerThreadStream) {
    for (const auto& stream : thread->streams) {
      if (stream->context == context) return stream;
    }
    const std::string name = "stream of host thread " + std::to_string(thread->number);
    thread->streams.push_back(driver->add_stream(context, true, name));
    return thread->streams.back();
  }
  const auto entry_of = driver->streams.find(handle);
  if (entry_of != driver->streams.end()) return entry_of->second;
  code = kInvalidHandle;
  driver->complain(std::string(entry) + ": there is no stream " + std::to_string(number) + " (any more)");
  return nullptr;
}

std::shared_ptr<Event> Call::event(void* handle) {
  const auto entry_of = driver->events.find(handle);
  if (entry_of != driver->events.end()) return entry_of->second;
  code = kInvalidHandle;
  const auto number = reinterpret_cast<uintptr_t>(handle);
  driver->complain(std::string(entry) + ": there is no event " + std::to_string(number) + " (any more)");
  return nullptr;
}

int Call::enqueue(const std::shared_ptr<Stream>& stream, std::shared_ptr<Command> command) {
  if (stream->capture == nullptr && !driver->has_room(*stream)) {
    if (driver->held_up(*stream)) ++driver->full_queues;
    api_.unlock();
    if (const int ended = driver->wait_until(&lock_, [&] { return driver->has_room(*stream); })) return ended;
  }
  const bool serialises = driver->options["serialises"] != 0;
  const int code = driver->enqueue(*thread, stream, command);
  return code == kSuccess && serialises && stream->capture == nullptr ? wait_for(command.get(), false) : code;
}

int Call::wait_for(const Command* command, bool holds_driver) {
  if (!holds_driver && api_.owns_lock()) api_.unlock();
  return driver->wait_for(&lock_, command);
}

void Call::wait_until_still() {
  const auto still = [&] { return driver->running == driver->in_functions || driver->stopping; };
  ++driver->blocked;
  driver->changed.wait(lock_, still);
  --driver->blocked;
  driver->changed.notify_all();
}

}  // namespace fake
