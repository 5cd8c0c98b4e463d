// Who runs commands: the test, step by step, or threads of the driver; and one thread that runs host functions.
#include <algorithm>
#include <chrono>

#include "driver.h"

namespace fake {

namespace {

using Lock = std::unique_lock<std::mutex>;

constexpr int kRunners = 3;
constexpr auto kPoll = std::chrono::microseconds(100);
constexpr auto kFunctionPatience = std::chrono::seconds(1);  // a step does not wait longer for a host function

}  // namespace

// Not before there is something to run: a process that has threads is a bad one to fork.
void Driver::start_threads() {
  if (!runners_.empty() || stopping) return;
  runners_.emplace_back([this] { run_functions(); });
  for (int runner = 0; runner < kRunners && !settings.steps; ++runner) {
    runners_.emplace_back([this] { run_commands(); });
  }
}

// One command, chosen by the seed, in the calling thread. False: none can be run now.
bool Driver::step(Lock* lock) {
  const std::shared_ptr<Command> command = pick();
  if (command == nullptr) return false;
  begin(command);
  if (command->for_function_thread()) {
    functions.push_back(command);
    ++in_functions;
    changed.notify_all();
    changed.wait_for(*lock, kFunctionPatience, [&] { return stopping || command->state == Command::State::kDone; });
    return true;
  }
  command->run();
  finish(command);
  return true;
}

void Driver::run_commands() {
  Lock lock(mutex);
  while (!stopping) {
    const std::shared_ptr<Command> command = paused ? nullptr : pick();
    if (command == nullptr) {
      if (polling && !paused) {
        changed.wait_for(lock, kPoll);
      } else {
        changed.wait(lock);
      }
      continue;
    }
    const auto longest = static_cast<uint64_t>(std::max<int64_t>(option("delay_us", 50), 0));
    const uint64_t delay = draw(4) == 0 ? draw(longest + 1) : 0;
    if (delay > 0) {
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(delay));
      lock.lock();
    }
    begin(command);
    if (command->for_function_thread()) {
      functions.push_back(command);
      ++in_functions;
      changed.notify_all();
      continue;
    }
    lock.unlock();
    command->run();
    lock.lock();
    finish(command);
  }
}

void Driver::run_functions() {
  runs_host_functions = true;
  Lock lock(mutex);
  while (true) {
    changed.wait(lock, [&] { return stopping || !functions.empty(); });
    if (stopping) return;
    const std::shared_ptr<Command> command = functions.front();
    functions.pop_front();
    Thread& self = thread();
    self.clock.join(command->clock);
    lock.unlock();
    command->run();
    lock.lock();
    command->clock.join(self.clock);
    self.clock.tick(self.actor);
    --in_functions;
    finish(command);
  }
}

int Driver::wait_until(Lock* lock, const std::function<bool()>& over) {
  const auto patience = std::chrono::milliseconds(option("patience_ms", 100000));
  const auto deadline = std::chrono::steady_clock::now() + patience;
  ++blocked;
  int code = kSuccess;
  while (!over() && code == kSuccess) {
    if (settings.steps && !paused && step(lock)) continue;
    changed.wait_for(*lock, std::chrono::milliseconds(1));
    if (stopping) {
      code = kDeinitialized;
    } else if (failed != 0) {
      code = failed;
    } else if (std::chrono::steady_clock::now() > deadline) {
      complain("a call of the driver waits for work that nothing lets go on");
      code = kUnknown;
    }
  }
  --blocked;
  changed.notify_all();
  return code;
}

int Driver::wait_for(Lock* lock, const Command* command) {
  return wait_until(lock,
                    [&] { return command != nullptr ? command->state == Command::State::kDone : pending() == 0; });
}

}  // namespace fake
