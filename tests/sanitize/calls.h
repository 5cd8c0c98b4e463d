// Makes the operations of one rank as the binding does (csrc/python/handle.cc), so that they are used again as there:
// what runs in the background comes from a pool and goes back when nobody holds it; a blocking call takes the
// operation of the last of its kind, which another thread's driver may have let go only just now.
#pragma once

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>

#include "drawn.h"
#include "engine/communicator.h"
#include "engine/operation_pool.h"
#include "pool.h"

namespace ddl::test {

using Submitted = std::shared_ptr<Operation>;

// Belongs to the thread that submits.
class Calls {
 public:
  Calls(int rank, int size, Communicator* communicator)
      : rank_(rank), size_(static_cast<size_t>(size)), communicator_(*communicator) {}

  // Starts it in the background. Null where this rank has no such buffer. Submitted at once: the pool takes one that
  // was taken and keeps nothing yet for finished.
  Submitted start(const Drawn& drawn, Collective collective, int root, Buffer* input, Buffer* output) {
    const Submitted operation = pool_.take();
    fill(operation.get(), drawn, collective, root);
    if (drawn.number % 3 == 0) operation->label = "a label too long for a short string";
    point(operation.get(), collective, root, input, output);
    communicator_.prepare(operation.get());
    communicator_.submit(operation);
    operation->kept = &released_;
    ++started_;
    return operation;
  }

  // As a prepared operation: it is over when its work is done, whoever may still hold it.
  Submitted run_prepared(const Drawn& drawn, Buffer* input, Buffer* output, Caller* caller) {
    Submitted& prepared = prepared_[drawn.count];
    if (prepared == nullptr) {
      prepared = std::make_shared<Operation>();
      fill(prepared.get(), drawn, drawn.collective, 0);
      communicator_.prepare(prepared.get());
    }
    point(prepared.get(), drawn.collective, 0, input, output);
    communicator_.run(prepared, caller);
    communicator_.run(prepared, caller);  // and at once again: nothing else orders this behind the last driver
    return prepared;
  }

  // Runs it and waits for its end.
  Submitted run(const Drawn& drawn, Collective collective, int root, Buffer* input, Buffer* output, Caller* caller) {
    if (collective == Collective::kAllreduce && drawn.number % 2 == 0) {
      return run_prepared(drawn, input, output, caller);
    }
    Submitted& last = last_[static_cast<size_t>(collective)];
    const bool free = last != nullptr && last.use_count() == 1;
    const Submitted operation = last == nullptr ? std::make_shared<Operation>() : free ? last : pool_.take();
    const bool alike = free && last->descriptor.root == root && last->part_lengths == lengths(drawn, collective);
    if (!alike) fill(operation.get(), drawn, collective, root);
    point(operation.get(), collective, root, input, output);
    if (!alike) communicator_.prepare(operation.get());
    if (last == nullptr) last = operation;
    pool_.sweep();
    communicator_.run(operation, caller);
    return operation;
  }

  void sweep() { pool_.sweep(); }
  // With nothing under way: what each has kept must have been let go, once.
  bool all_released() const { return released_ == started_; }

 private:
  static std::vector<uint64_t> lengths(const Drawn& drawn, Collective collective) {
    if (collective == Collective::kBarrier) return {};
    return {drawn.count};
  }

  void fill(Operation* operation, const Drawn& drawn, Collective collective, int root) const {
    operation->descriptor = Descriptor{};
    operation->descriptor.collective = collective;
    operation->descriptor.dtype = DType::kInt64;
    operation->descriptor.root = root;
    operation->part_lengths = lengths(drawn, collective);
    operation->count = operation->bytes = 0;
    if (collective == Collective::kBarrier) return;
    operation->descriptor.count = operation->count = drawn.count;
    operation->bytes =
        drawn.count * sizeof(Value) * std::max(in_blocks(collective, size_), out_blocks(collective, size_));
  }

  void point(Operation* operation, Collective collective, int root, Buffer* input, Buffer* output) const {
    const bool at_root = rank_ == root;
    const bool from_root = collective == Collective::kBroadcast || collective == Collective::kScatter;
    const bool to_root = collective == Collective::kReduce || collective == Collective::kGather;
    operation->input = input != nullptr && (!from_root || at_root) ? input->bytes() : nullptr;
    operation->output = output != nullptr && (!to_root || at_root) ? output->bytes() : nullptr;
  }

  const int rank_;
  const size_t size_;
  Communicator& communicator_;
  int started_ = 0, released_ = 0;
  OperationPool pool_{[](void* kept) { ++*static_cast<int*>(kept); }};
  std::array<Submitted, 16> last_;        // by collective
  std::map<size_t, Submitted> prepared_;  // all-reduces, by count
};

}  // namespace ddl::test
