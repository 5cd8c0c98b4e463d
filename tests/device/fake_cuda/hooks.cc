// The hooks that DDL's core calls where it finds them: what its own threads do with memory that streams use, too.
//
// A release comes before the store that others see, an acquire behind the load that has seen it.
#include "driver.h"

namespace fake {

namespace {

using Lock = std::unique_lock<std::mutex>;

// A word that streams can write or wait for; its value now is what a wait compares with.
const uint32_t* flag(const Driver& driver, uintptr_t word) {
  return word % sizeof(uint32_t) != 0
             ? nullptr
             : reinterpret_cast<const uint32_t*>(driver.place_of(word, sizeof(uint32_t)).memory);
}

}  // namespace

void Driver::note(const Command& command, Range range, AccessKind kind) {
  ledger.note({range, kind, command.stream->actor, command.time, command.who(), name_of(range.begin)}, command.clock);
}

void Driver::note(Thread& thread, const char* who, Range range, AccessKind kind) {
  const uint32_t time = thread.clock.at(thread.actor);
  ledger.note({range, kind, thread.actor, time, who, name_of(range.begin)}, thread.clock);
}

FAKE_EXPORT void ddl_ledger_access(const void* host, size_t bytes, int writing, const char* who) {
  Driver* const driver = Driver::exited() ? nullptr : Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  const auto begin = reinterpret_cast<uintptr_t>(host);
  const AccessKind kind = writing != 0 ? AccessKind::kWrite : AccessKind::kRead;
  driver->note(driver->thread(), who != nullptr ? who : "host", {begin, begin + bytes}, kind);
}

FAKE_EXPORT void ddl_ledger_release(const void* token) {
  Driver* const driver = Driver::exited() ? nullptr : Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  Thread& thread = driver->thread();
  const auto word = reinterpret_cast<uintptr_t>(token);
  if (const uint32_t* const value = flag(*driver, word)) {
    // The value to be stored is not there yet. Who waits for one that is there already need not see this release.
    driver->ledger.stamp(word, __atomic_load_n(value, __ATOMIC_RELAXED) + 1, thread.clock);
  } else {
    driver->ledger.release(word, thread.clock);
  }
  thread.clock.tick(thread.actor);
}

FAKE_EXPORT void ddl_ledger_acquire(const void* token) {
  Driver* const driver = Driver::exited() ? nullptr : Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  driver->ledger.acquire(reinterpret_cast<uintptr_t>(token), &driver->thread().clock);
}

// As ddl_ledger_acquire of a flag, by a thread that needs no more than that it is at least `value`: what made it
// larger is not known, however early it came.
FAKE_EXPORT void ddl_ledger_acquire_at_least(const void* word, uint32_t value) {
  Driver* const driver = Driver::exited() ? nullptr : Driver::usable();
  if (driver == nullptr) return;
  const Lock lock(driver->mutex);
  driver->ledger.join_at_least(reinterpret_cast<uintptr_t>(word), value, &driver->thread().clock);
}

}  // namespace fake
