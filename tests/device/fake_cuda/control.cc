// What tests call beside the driver's own names: they set the stage, run commands, inject faults and read the ledger.
//
// In a forked child of a process that used the driver these do nothing, but for fake_reset, which gives the child a
// driver of its own.
#include <cstring>

#include "driver.h"

namespace fake {

namespace {

using Lock = std::unique_lock<std::mutex>;

template <typename Map, typename Predicate>
size_t count_if(const Map& objects, Predicate predicate) {
  size_t count = 0;
  for (const auto& entry : objects) count += predicate(*entry.second) ? 1 : 0;
  return count;
}

// Where a test may look at device memory, or null. What it looks at is an access of the calling thread.
char* look(Driver* driver, const char* who, DevicePointer pointer, size_t bytes, AccessKind kind) {
  const Place place = driver->place_of(pointer, bytes);
  if (place.allocation == nullptr) {
    driver->complain(std::string(who) + " of " + std::to_string(bytes) + " bytes at " + driver->name_of(pointer));
    return nullptr;
  }
  driver->note(driver->thread(), who, {pointer, pointer + bytes}, kind);
  return place.memory;
}

}  // namespace

FAKE_EXPORT void fake_reset(uint64_t seed, int mode, int queues, int devices, int strict) {
  Settings settings;
  settings.seed = seed;
  settings.steps = mode == 1;
  settings.queues = queues;
  settings.devices = devices;
  settings.strict = strict != 0;
  Driver::anew().reset(settings);
}

// Whether the test runs the commands.
FAKE_EXPORT int fake_steps() {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return 0;
  const Lock lock(driver->mutex);
  return driver->settings.steps ? 1 : 0;
}

FAKE_EXPORT int fake_step(int count) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return 0;
  Lock lock(driver->mutex);
  int ran = 0;
  while (ran < count && driver->step(&lock)) ++ran;
  return ran;
}

// Afterwards no command runs (host functions that have begun do), and none begins until it is called with 0.
FAKE_EXPORT void fake_pause(int paused) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return;
  Lock lock(driver->mutex);
  driver->paused = paused != 0;
  driver->changed.notify_all();
  driver->changed.wait(lock, [&] { return !driver->paused || driver->running == driver->in_functions; });
}

FAKE_EXPORT size_t fake_pending() {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return 0;
  const Lock lock(driver->mutex);
  return driver->pending();
}

FAKE_EXPORT void fake_fail(int code, int after) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  driver->fail_code = code;
  driver->fail_after = after;
  driver->settle();
}

FAKE_EXPORT void fake_refuse(const char* entry, int code, int count) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  driver->refusals[entry] = {code, count};
}

FAKE_EXPORT uint64_t fake_calls(const char* entry) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return 0;
  const Lock lock(driver->mutex);
  return driver->calls[entry];
}

// "free_waits": cuMemFree_v2 waits for the device, and no other call of the driver is served meanwhile. "pooled":
// what is allocated from now on tells no context. "delay_us": the longest delay before a command. "patience_ms": how
// long a call waits for work. "early_words": streams write words at once, not behind what they have. "version",
// "attribute_N": what the driver tells. "down_bytes_per_s", "up_bytes_per_s": how fast copies are at most.
// "keep_registrations": the next reset does. "queue_depth": how many commands a queue of the hardware takes before it
// blocks the caller. "serialises": a call returns when what it has queued has run, as with CUDA_LAUNCH_BLOCKING=1.
// "word_us": how long after its turn a word is written. "slice_us": so long the device runs what this process has
// queued, then as long nothing, as if it were another process's turn, and so on. "shifted_addresses": the device
// knows registered memory by other addresses than the host.
FAKE_EXPORT void fake_option(const char* name, int64_t value) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  driver->options[name] = value;
}

FAKE_EXPORT size_t fake_live(const char* what) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return 0;
  const Lock lock(driver->mutex);
  const std::string kind = what;
  if (kind == "streams") return driver->streams.size();
  if (kind == "events") return driver->events.size();
  if (kind == "registrations") return driver->registrations.size();
  if (kind == "contexts") return driver->primary.size();
  if (kind == "accesses") return driver->ledger.entries();
  if (kind == "threads") return driver->threads.size();
  if (kind == "full queues") return driver->full_queues;
  if (kind != "allocations") return static_cast<size_t>(-1);
  return count_if(driver->allocations, [](const Allocation& allocation) { return !allocation.freed; });
}

FAKE_EXPORT int fake_violations() {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return 0;
  const Lock lock(driver->mutex);
  return static_cast<int>(driver->ledger.violations().size());
}

// Valid until the next reset.
FAKE_EXPORT const char* fake_violation(int index) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return nullptr;
  const Lock lock(driver->mutex);
  const auto& violations = driver->ledger.violations();
  const auto number = static_cast<size_t>(index);
  return index >= 0 && number < violations.size() ? violations[number].c_str() : nullptr;
}

// What an address belongs to. Valid until the same thread asks again.
FAKE_EXPORT const char* fake_name(uint64_t address) {
  static thread_local std::string name;
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return "";
  const Lock lock(driver->mutex);
  name = driver->name_of(address);
  return name.c_str();
}

FAKE_EXPORT int fake_peek(uint64_t pointer, void* to, size_t bytes) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return kNotInitialized;
  const Lock lock(driver->mutex);
  const char* const memory = look(driver, "fake_peek", pointer, bytes, AccessKind::kRead);
  if (memory == nullptr) return kInvalidValue;
  std::memcpy(to, memory, bytes);
  return kSuccess;
}

FAKE_EXPORT int fake_poke(uint64_t pointer, const void* from, size_t bytes) {
  Driver* const driver = Driver::usable();
  if (driver == nullptr) return kNotInitialized;
  const Lock lock(driver->mutex);
  char* const memory = look(driver, "fake_poke", pointer, bytes, AccessKind::kWrite);
  if (memory == nullptr) return kInvalidValue;
  std::memcpy(memory, from, bytes);
  return kSuccess;
}

}  // namespace fake
