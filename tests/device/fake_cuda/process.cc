// Which driver a process has: one, made when it is first needed, which a forked child may lose, and which goes at
// exit.
//
// A process that no test steers (a rank of a job) takes its settings from the environment: FAKE_CUDA_SEED, _MODE
// (threads or steps), _QUEUES, _DEVICES and _STRICT; _REFUSE ("cuInit=34,cuMemAlloc_v2=2"): calls that always fail;
// _REPORT: a file to which the violations are appended at exit.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "driver.h"

namespace fake {

namespace {

std::atomic<Driver*> current{nullptr};
std::mutex creation;
std::atomic<bool> at_end{false};

void report(Driver* driver, const char* file) {
  const std::lock_guard<std::mutex> lock(driver->mutex);
  if (driver->ledger.violations().empty()) return;
  std::FILE* const to = std::fopen(file, "a");
  if (to == nullptr) return;
  for (const std::string& text : driver->ledger.violations()) {
    std::fprintf(to, "pid %d: %s\n", driver->pid, text.c_str());
  }
  std::fclose(to);
}

// The driver goes before those that loaded it: exit handlers run in the reverse order.
struct End {
  ~End() {
    at_end.store(true, std::memory_order_seq_cst);
    Driver* const driver = current.load(std::memory_order_acquire);
    const char* const file = std::getenv("FAKE_CUDA_REPORT");
    if (driver != nullptr && driver->pid == ::getpid() && file != nullptr) report(driver, file);
  }
} end;

int number_of(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value == nullptr || *value == '\0' ? otherwise : std::atoi(value);
}

Settings settings_of_environment() {
  Settings settings;
  const char* const mode = std::getenv("FAKE_CUDA_MODE");
  settings.seed = static_cast<uint64_t>(number_of("FAKE_CUDA_SEED", 1));
  settings.steps = mode != nullptr && std::strcmp(mode, "steps") == 0;
  settings.queues = number_of("FAKE_CUDA_QUEUES", settings.queues);
  settings.devices = number_of("FAKE_CUDA_DEVICES", settings.devices);
  settings.strict = number_of("FAKE_CUDA_STRICT", 1) != 0;
  return settings;
}

Driver* driver_of_environment() {
  auto* const driver = new Driver(settings_of_environment());
  const char* const refusals = std::getenv("FAKE_CUDA_REFUSE");
  std::string rest = refusals != nullptr ? refusals : "";
  while (!rest.empty()) {
    const std::string part = rest.substr(0, rest.find(','));
    rest.erase(0, part.size() + 1);
    const size_t equals = part.find('=');
    if (equals != std::string::npos) driver->refusals[part.substr(0, equals)] = {std::atoi(&part[equals + 1]), -1};
  }
  return driver;
}

}  // namespace

Driver::Driver(const Settings& settings) : settings(settings), pid(::getpid()) { random = settings.seed; }

bool Driver::exited() { return at_end.load(std::memory_order_seq_cst); }

Driver* Driver::usable() {
  Driver* driver = current.load(std::memory_order_acquire);
  if (driver != nullptr && driver->pid == ::getpid()) return driver;
  if (driver != nullptr && driver->initialised.load(std::memory_order_acquire)) return nullptr;
  const std::lock_guard<std::mutex> lock(creation);
  driver = current.load(std::memory_order_acquire);
  if (driver == nullptr || driver->pid != ::getpid()) {
    driver = driver != nullptr ? new Driver(driver->settings) : driver_of_environment();
    current.store(driver, std::memory_order_release);
  }
  return driver;
}

Driver& Driver::anew() {
  if (Driver* const driver = usable()) return *driver;
  auto* const driver = driver_of_environment();
  current.store(driver, std::memory_order_release);
  return *driver;
}

}  // namespace fake
