#include "ledger.h"

#include <algorithm>
#include <cstdio>

namespace fake {

namespace {

// More accesses than that are forgotten, the oldest first: a test that has so many should begin anew.
constexpr size_t kMostAccesses = 20000, kMostViolations = 1000, kMostStamps = 64;

bool writes(AccessKind kind) { return kind == AccessKind::kWrite || kind == AccessKind::kAtomicWrite; }
bool atomic(AccessKind kind) { return kind == AccessKind::kAtomicRead || kind == AccessKind::kAtomicWrite; }

bool conflict(AccessKind a, AccessKind b) { return (writes(a) || writes(b)) && !(atomic(a) && atomic(b)); }

// Whether whatever conflicts with `weak` conflicts with `strong`, too.
bool at_least_as_strong(AccessKind strong, AccessKind weak) {
  return strong == weak || strong == AccessKind::kWrite || weak == AccessKind::kAtomicRead;
}

const char* verb(AccessKind kind) {
  switch (kind) {
    case AccessKind::kRead:
      return "reads";
    case AccessKind::kWrite:
      return "writes";
    case AccessKind::kAtomicRead:
      return "waits for";
    case AccessKind::kAtomicWrite:
      return "stores to";
  }
  return "";
}

}  // namespace

size_t Ledger::add_actor(std::string name) {
  actors_.push_back(std::move(name));
  return actors_.size() - 1;
}

std::string Ledger::text(const Access& access) const {
  char range[64];
  std::snprintf(range, sizeof range, " [%#zx, %#zx)", static_cast<size_t>(access.range.begin),
                static_cast<size_t>(access.range.end));
  return access.who + " (" + actors_[access.actor] + ") " + verb(access.kind) + " " + access.where + range;
}

void Ledger::note(Access access, const Clock& clock) {
  if (access.range.begin >= access.range.end) return;
  // Checks an earlier access, and returns whether it can be forgotten: whatever comes later and is unordered with it,
  // is unordered with this one as well.
  const auto covered = [&](const Access& earlier) {
    if (!earlier.range.overlaps(access.range)) return false;
    const bool ordered = clock.at(earlier.actor) >= earlier.time;
    if (!ordered && conflict(earlier.kind, access.kind)) {
      complain("nothing orders these: " + text(earlier) + "; " + text(access));
    }
    return ordered && access.range.contains(earlier.range) && at_least_as_strong(access.kind, earlier.kind);
  };
  accesses_.erase(std::remove_if(accesses_.begin(), accesses_.end(), covered), accesses_.end());
  accesses_.push_back(std::move(access));
  if (accesses_.size() > kMostAccesses) accesses_.pop_front();
}

void Ledger::renew(const Range& range, const std::string& end) {
  const auto ended = [&](const Access& access) { return range.contains(access.range) && access.who == end; };
  accesses_.erase(std::remove_if(accesses_.begin(), accesses_.end(), ended), accesses_.end());
}

void Ledger::stamp(uintptr_t word, uint32_t value, const Clock& clock) {
  auto& stamps = words_[word].stamps;
  // Who waits for a larger value meets this stamp as well.
  const auto useless = [&](const auto& older) {
    return static_cast<int32_t>(older.first - value) >= 0 && clock.covers(older.second);
  };
  stamps.erase(std::remove_if(stamps.begin(), stamps.end(), useless), stamps.end());
  stamps.emplace_back(value, clock);
  if (stamps.size() > kMostStamps) {
    stamps[0].second.join(stamps[1].second);  // of the lower value: too much is known, never too little
    stamps.erase(stamps.begin() + 1);
  }
}

void Ledger::join_at_least(uintptr_t word, uint32_t value, Clock* clock) const {
  const auto entry = words_.find(word);
  if (entry == words_.end()) return;
  clock->join(entry->second.released);
  for (const auto& stamp : entry->second.stamps) {
    if (static_cast<int32_t>(stamp.first - value) <= 0) clock->join(stamp.second);
  }
}

void Ledger::release(uintptr_t word, const Clock& clock) { words_[word].released.join(clock); }

void Ledger::acquire(uintptr_t word, Clock* clock) const {
  const auto entry = words_.find(word);
  if (entry == words_.end()) return;
  clock->join(entry->second.released);
  for (const auto& stamp : entry->second.stamps) clock->join(stamp.second);
}

void Ledger::complain(std::string text) {
  if (violations_.size() < kMostViolations) violations_.push_back(std::move(text));
}

}  // namespace fake
