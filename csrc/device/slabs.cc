#include "device/slabs.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/error.h"
#include "memory/arena.h"
#include "memory/pages.h"

namespace ddl {

namespace {

constexpr size_t kSlab = size_t{64} << 20;
constexpr size_t kUnit = size_t{64} << 10;  // what is handed out begins on pages, whatever their size
constexpr size_t kShare = 8;                // of the arena, at least: then a slab is of kSlab bytes

}  // namespace

Slabs& Slabs::process() {
  static Slabs* slabs = new Slabs;  // never destroyed, as the arena
  return *slabs;
}

Slabs::Part Slabs::allocate(const Driver& driver, size_t bytes) {
  const size_t need = round_up(std::max(bytes, size_t{1}), kUnit);
  {
    const Lock lock(mutex_);
    driver.note_acquire(this);
    for (Slab& slab : slabs_) {
      const std::optional<size_t> start = slab.parts.take(need, kUnit);
      if (start) return {slab.base + *start, slab.registered};
    }
  }
  Slab slab = make(driver, need);  // it takes long, and others need the lock meanwhile
  char* const memory = slab.base + slab.parts.take(need, kUnit).value();
  const Lock lock(mutex_);
  slabs_.push_back(std::move(slab));
  return {memory, slabs_.back().registered};
}

Slabs::Slab Slabs::make(const Driver& driver, size_t need) {
  // Slabs double, so that arrays that grow do not each need a slab of their own. In a small arena (DDL_SHM_SIZE) a
  // slab is as small as it must be.
  size_t size = kSlab;
  while (size < need) size *= 2;
  if (Arena::process().size() / kShare < size) size = need;
  Slab slab{static_cast<char*>(Arena::process().allocate(size, kUnit)), false, FreeList(size)};
  try {
    make_pages(slab.base, size);  // to register memory whose pages are there takes a fifteenth of the time
  } catch (...) {
    Arena::process().free(slab.base);
    throw;
  }
  {
    const Lock lock(mutex_);
    if (refused_) return slab;
  }
  try {
    const Nanoseconds begin = now_ns();
    driver.register_memory(slab.base, size);
    slab.registered = true;
    const Lock lock(mutex_);
    registered_ += size;
    registering_ += now_ns() - begin;
  } catch (const DriverError& error) {
    if (error.fatal()) throw;
    const Lock lock(mutex_);
    refused_ = !error.passing();
    if (refusal_.empty()) refusal_ = error.what();
  }
  return slab;
}

void Slabs::free(const Driver& driver, const char* memory) {
  const Lock lock(mutex_);
  driver.note_release(this);
  for (Slab& slab : slabs_) {
    if (memory >= slab.base && slab.parts.give_back(static_cast<size_t>(memory - slab.base))) return;
  }
  throw Error(ErrorKind::kInternalError, "free of a block that no slab gave");
}

Slabs::Registration Slabs::registration() {
  const Lock lock(mutex_);
  return {registered_, registering_, refusal_};
}

std::string Slabs::take_refusal() {
  const Lock lock(mutex_);
  if (told_ || refusal_.empty()) return "";
  told_ = true;
  return refusal_;
}

}  // namespace ddl
