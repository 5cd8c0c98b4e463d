#include "engine/operation_pool.h"

#include <utility>

namespace ddl {

namespace {

constexpr size_t kFirst = 8;

}  // namespace

void OperationPool::sweep() {
  while (keeping_ > 0) {
    Operation& operation = *ring_[oldest_];
    if (operation.open && ring_[oldest_].use_count() > 1) return;
    if (operation.kept != nullptr && !operation.work.done()) return;
    void* const kept = std::exchange(operation.kept, nullptr);
    oldest_ = (oldest_ + 1) % ring_.size();
    --keeping_;
    if (kept != nullptr) release_(kept);  // last: it may run the user's code, which may come back here
  }
}

std::shared_ptr<Operation> OperationPool::take() {
  sweep();
  // If the operation given out longest ago is still in use, the ring is too small.
  if (ring_.empty() || ring_[next_].use_count() != 1 || ring_[next_]->kept != nullptr) {
    const size_t more = ring_.empty() ? kFirst : ring_.size();
    std::vector<std::shared_ptr<Operation>> fresh;
    for (size_t i = 0; i < more; ++i) fresh.push_back(std::make_shared<Operation>());
    ring_.insert(ring_.begin() + static_cast<std::ptrdiff_t>(next_), fresh.begin(), fresh.end());
    if (keeping_ > 0 && oldest_ >= next_) oldest_ += more;
  }
  const size_t taken = next_;
  next_ = (next_ + 1) % ring_.size();
  if (keeping_ == 0) oldest_ = taken;
  ++keeping_;
  Operation& operation = *ring_[taken];
  operation.open = true;
  operation.label.clear();
  operation.part_lengths.clear();
  operation.input = nullptr;
  operation.output = nullptr;
  operation.stage = nullptr;
  operation.descriptor = Descriptor{};
  operation.count = operation.bytes = 0;
  return ring_[taken];
}

}  // namespace ddl
