// Which driver a process has: one, made when it is first needed, which a forked child may lose, and which goes at
// exit.
//
// A process that no test steers (a rank of a job) takes its settings from the environment: FAKE_CUDA_SEED, _MODE
// (threads or steps), _QUEUES, _DEVICES and _STRICT; _REFUSE ("cuInit=34,cuMemAlloc_v2=2"): calls that always fail;
// _OPTIONS ("attribute_20=2,delay_us=0"): as fake_option, until a reset; _FAIL ("700:5"): the error that all devices
// have after so many commands; _PAUSED=1: no command ever runs; _REPORT: a file to which the violations are appended
// at exit.
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

// Of "name=number,name=number".
std::map<std::string, int64_t> pairs_of(const char* variable) {
  const char* const value = std::getenv(variable);
  std::string rest = value != nullptr ? value : "";
  std::map<std::string, int64_t> pairs;
  while (!rest.empty()) {
    const std::string part = rest.substr(0, rest.find(','));
    rest.erase(0, part.size() + 1);
    const size_t equals = part.find('=');
    if (equals != std::string::npos) pairs[part.substr(0, equals)] = std::atoll(&part[equals + 1]);
  }
  return pairs;
}

Driver* driver_of_environment() {
  auto* const driver = new Driver(settings_of_environment());
  for (const auto& [entry, code] : pairs_of("FAKE_CUDA_REFUSE")) {
    driver->refusals[entry] = {static_cast<int>(code), -1};
  }
  driver->options = pairs_of("FAKE_CUDA_OPTIONS");
  driver->paused = number_of("FAKE_CUDA_PAUSED", 0) != 0;
  const char* const failure = std::getenv("FAKE_CUDA_FAIL");
  if (failure != nullptr && *failure != '\0') {
    const char* const after = std::strchr(failure, ':');
    driver->fail_code = std::atoi(failure);
    driver->fail_after = after == nullptr ? 0 : std::atoi(after + 1);
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
