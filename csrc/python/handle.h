// The object behind Python's ddl._core.Communicator: the native communicator, the operations submitted to it, and the
// Python function that plans for it. The caller of each function holds the interpreter lock.
#pragma once

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <limits>
#include <memory>
#include <vector>

#include "engine/communicator.h"
#include "engine/operation_pool.h"
#include "engine/wide_average.h"
#include "python/memory.h"
#include "python/native_calls.h"

namespace ddl {

// All arguments of a call except its arrays.
struct Call {
  Collective collective = Collective::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  int sizes_for = 0;           // see Descriptor
  bool count_differs = false;  // ranks may pass different numbers of elements
  uint64_t bytes = 0;          // they choose the plan; 0: those of the buffer
  // Elements of each block: empty (no blocks), one number (all the same) or one per part.
  std::vector<uint64_t> part_lengths;
  pybind11::object residual;  // float32, as many as in the buffer; None or nothing: none
};

class Handle {
 public:
  explicit Handle(const CommunicatorOptions& options);
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  Communicator& native() { return *native_; }
  void set_planner(pybind11::object planner) { planner_ = std::move(planner); }
  // Calls `function()` once, before the first collective that is called after `submitted` have been submitted. So all
  // ranks call it between the same two collectives.
  void set_milestone(uint64_t submitted, pybind11::object function) {
    milestone_ = submitted;
    at_milestone_ = std::move(function);
  }
  // Call before a prepared operation is run again: chooses its plan anew if plans were replaced.
  void renew(Operation* operation);
  // The operation of a call, ready to be submitted. A buffer is None if the rank has none (not the root of a reduce,
  // say). Throws kInvalidArgument, before anything is numbered or sent.
  std::shared_ptr<Operation> operation(const Call& call, const pybind11::object& input,
                                       const pybind11::object& output);
  // Whether an array is on a GPU.
  static bool on_gpu(const pybind11::object& array);
  // The same, in place, for a call that is made many times. The buffer is in memory of the host. Null if the
  // operation works on a copy of it, so that it has to be made anew each time.
  std::shared_ptr<Operation> prepared(const Call& call, const pybind11::object& buffer);
  // The same, for a blocking call that is probably like the last one of its collective. The arrays determine all
  // sizes.
  std::shared_ptr<Operation> reuse_last(const Call& call, const pybind11::object& input,
                                        const pybind11::object& output);
  // The same, for memory of somebody else's, in a thread that holds no interpreter lock; see native_calls.h.
  std::shared_ptr<Operation> foreign(const DdlNativeCall& call);
  // Returns whether it is done. False only with sleeps = false, instead of sleeping; then the operation goes on.
  bool run(const std::shared_ptr<Operation>& operation, bool sleeps = true);
  // Submits and returns; `kept` lives at least as long as the operation needs it.
  void start(const std::shared_ptr<Operation>& operation, const pybind11::object& kept);
  bool wait(Operation& operation, Nanoseconds timeout);
  // Call when the operation has ended well. Returns when results are where they belong, on a GPU perhaps; false if
  // that took longer than `timeout` (below 0: the operation's own, after which the communicator has failed).
  bool finish_stage(Operation& operation, Nanoseconds timeout);
  // Lets `stream`, the driver's handle of one, wait for the results on a GPU, and returns true; false if only the
  // host can wait. The operation may fail afterwards: then the next call throws, and the results are undefined.
  bool wait_on(Operation& operation, uintptr_t stream);
  static bool can_wait_on(const Operation& operation);
  // Whether the operation has ended, and so has the way back to the GPU.
  static bool done(const Operation& operation);
  void shutdown();
  // Whether Python can still reach it without this object: by an operation that is under way or prepared.
  bool in_use() const {
    return prepared_operations > 0 || native_->busy() ||
           std::any_of(staged_.begin(), staged_.end(),
                       [](const Staged& staged) { return !staged.transfer->ended(); });
  }
  int prepared_operations = 0;  // that live

 private:
  // The arrays of a call.
  struct Arrays {
    Memory in, out;
    char* residual = nullptr;
    bool has_in = false, has_out = false;
    std::shared_ptr<WideAverage> widened;  // whose copies `in` and `out` are then
    const Memory& any() const { return has_in ? in : out; }
    bool on_gpu() const { return in.on_gpu != nullptr || out.on_gpu != nullptr; }
    bool copied() const { return on_gpu() || widened != nullptr; }
  };
  static uint64_t block_length(Collective collective, const Arrays& arrays, uint64_t rank, uint64_t size);
  void plan(const Call& call);
  void pass_milestone() {
    if (native_->submitted() >= milestone_) call_at_milestone();
  }
  void call_at_milestone();
  void fill(Operation* operation, const Call& call, const Arrays& arrays);
  static void point(Operation* operation, const Arrays& arrays);
  CopyStreams* streams_of(const std::shared_ptr<Gpu>& gpu, bool messages);
  // Begins the way of arrays on a GPU to the host and back.
  void stage(Operation* operation, const Arrays& arrays);
  // If it throws, nothing will ever come of what is staged.
  void submit(const std::shared_ptr<Operation>& operation);
  // See Stage::follow and Stage::cancel, if it has one.
  static void follow_stage(const Operation& operation, bool submitted);
  static void cancel_stage(const Operation& operation);
  // Lets go of arrays that no GPU uses any more.
  void sweep();
  Arrays look_at(const Call& call, const pybind11::object& input, const pybind11::object& output) const;
  Arrays arrays_of(const Call& call, const pybind11::object& input, const pybind11::object& output) const;
  static void widen(const char* what, Arrays* arrays);
  // Throws the error; if the GPU has failed for good, all ranks are told.
  [[noreturn]] void driver_has_refused(const DriverError& error) const;

  // Arrays on a GPU: a transfer, and what keeps the arrays alive until it has ended.
  struct Staged {
    std::shared_ptr<Transfer> transfer;
    pybind11::object in, out;
  };

  std::unique_ptr<Communicator> native_;
  std::vector<Staged> staged_;
  // Of each GPU that it has used: for collectives, and for messages.
  struct UsedGpu {
    std::unique_ptr<CopyStreams> collectives, messages;
  };
  std::vector<UsedGpu> used_;
  std::unique_ptr<OperationPool> pool_;
  std::array<std::shared_ptr<Operation>, 16> last_;  // of `reuse_last`, by collective
  pybind11::object planner_ = pybind11::none();
  std::atomic<uint64_t> milestone_{std::numeric_limits<uint64_t>::max()};  // `foreign` reads it without the lock
  pybind11::object at_milestone_ = pybind11::none();
};

}  // namespace ddl
