// Arrays on a GPU: their way to the host and back, around an operation on the copies.
#include <sched.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string>
#include <utility>

#include "device/slabs.h"
#include "engine/buffers.h"
#include "python/call_checks.h"
#include "python/gil.h"
#include "python/handle.h"

namespace py = pybind11;

namespace ddl {

namespace {

// Calls of the driver may wait for another thread's, which may want the interpreter.
template <typename Body>
auto let_go(Body body) {
  const py::gil_scoped_release released;
  return body();
}

// The parts of each batch: those of its pieces, joined where one ends as another begins.
std::vector<Ranges> ranges_of_batches(const Operation& operation, BufferId buffer, const Batches& batches) {
  std::vector<Ranges> joined(batches.count());
  std::map<uint64_t, size_t> ends;  // of the batch: which part ends there
  for (uint64_t piece = 0; piece < batches.pieces; ++piece) {
    Ranges& ranges = joined[batches.of_piece(piece)];
    if (ranges.empty()) ends.clear();
    for (const Range& range : ranges_of(operation, buffer, piece)) {
      size_t index = ranges.size();
      const auto before = ends.find(range.offset);
      if (before == ends.end()) {
        ranges.push_back(range);
      } else {
        index = before->second;
        ranges[index].bytes += range.bytes;
        ends.erase(before);
      }
      ends[ranges[index].offset + ranges[index].bytes] = index;
    }
  }
  return joined;
}

// An array of an operation as its transfer needs it; nothing if it is in memory of the host.
StagedArray staged_array(const Memory& memory, const Operation& operation, BufferId buffer, const Batches& batches) {
  StagedArray array;
  if (memory.on_gpu == nullptr) return array;
  array.device = reinterpret_cast<DevicePointer>(memory.data);
  array.bytes = memory.bytes();
  array.batches = ranges_of_batches(operation, buffer, batches);
  return array;
}

}  // namespace

// The other ranks are told at once of a GPU that has failed: this one cannot take part any more.
void Handle::driver_has_refused(const DriverError& error) const {
  if (error.fatal()) {
    native_->fail(error.kind(), native_->rank(), error.what(), true);
    native_->check();
  }
  throw DriverError(error);
}

CopyStreams* Handle::streams_of(const std::shared_ptr<Gpu>& gpu, bool messages) {
  for (const UsedGpu& used : used_) {
    if (&used.collectives->gpu() == gpu.get()) return (messages ? used.messages : used.collectives).get();
  }
  UsedGpu fresh =
      let_go([&] { return UsedGpu{std::make_unique<CopyStreams>(gpu), std::make_unique<CopyStreams>(gpu)}; });
  used_.push_back(std::move(fresh));
  return (messages ? used_.back().messages : used_.back().collectives).get();
}

bool Handle::can_wait_on(const Operation& operation) {
  return operation.stage != nullptr && operation.stage->can_wait_on();
}

bool Handle::wait_on(Operation& operation, uintptr_t stream) {
  if (operation.stage == nullptr) return false;
  sweep();
  if (operation.work.done()) operation.work.check();
  try {
    return let_go([&] { return operation.stage->wait_on(stream_handle(stream)); });
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
}

void Handle::stage(Operation* operation, const Arrays& arrays) {
  const char* const what = name(operation->descriptor.collective);
  const Memory &in = arrays.in, &out = arrays.out;
  const OnGpu& place = in.on_gpu != nullptr ? *in.on_gpu : *out.on_gpu;
  const std::shared_ptr<Gpu>& gpu = place.gpu;
  if (out.on_gpu != nullptr && out.on_gpu->gpu != gpu) {
    refuse(what, "the input is on GPU " + std::to_string(gpu->device()) + ", but the target is on GPU " +
                     std::to_string(out.on_gpu->gpu->device()));
  }
  std::vector<StreamHandle> producers;
  for (const Memory* memory : {&in, &out}) {
    if (memory->on_gpu != nullptr && memory->on_gpu->ordered) producers.push_back(memory->on_gpu->stream);
  }
  StagedArray down, up;
  size_t ranges = 0;
  if (arrays.has_in) ranges = ranges_of(*operation, BufferId::kInput, 0).size();
  if (arrays.has_out) ranges = std::max(ranges, ranges_of(*operation, BufferId::kOutput, 0).size());
  const Batches batches = Batches::of(operation->pieces, ranges);
  if (arrays.has_in) down = staged_array(in, *operation, BufferId::kInput, batches);
  if (arrays.has_out) up = staged_array(out, *operation, BufferId::kOutput, batches);
  try {
    const bool ordered = !is_message(operation->descriptor.collective);
    CopyStreams* const streams = streams_of(gpu, !ordered);
    const std::shared_ptr<Transfer> transfer =
        let_go([&] { return gpu->prepare(streams, std::move(down), std::move(up), batches, ordered); });
    staged_.push_back({transfer, in.owner, out.owner});  // if `begin` throws, copies may be under way all the same
    let_go([&] { gpu->begin(transfer, producers); });
    operation->stage = transfer;
    if (transfer->in_host() != nullptr) operation->input = transfer->in_host();
    if (transfer->out_host() != nullptr) operation->output = transfer->out_host();
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
  for (const Memory* memory : {&in, &out}) {
    if (memory->on_gpu != nullptr && memory->on_gpu->gate != nullptr) memory->on_gpu->gate->pass();
  }
  std::string slow = Slabs::process().take_refusal();
  if (!slow.empty()) {
    slow = "GPUs cannot read host memory directly here (" + slow +
           "), so arrays on a GPU take a slower way, and calls with them may block";
  }
  for (const std::string& text : {slow, gpu->take_reason_to_wait_on_host()}) {
    if (text.empty() || PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) == 0) continue;
    cancel_stage(*operation);
    throw py::error_already_set();
  }
}

void Handle::follow_stage(const Operation& operation, bool submitted) {
  if (operation.stage != nullptr) let_go([&] { operation.stage->follow(submitted); });
}

void Handle::cancel_stage(const Operation& operation) {
  if (operation.stage == nullptr) return;
  operation.stage->cancel();
  follow_stage(operation, false);
}

bool Handle::on_gpu(const py::object& array) {
  if (py::isinstance<GpuMemory>(array)) return true;
  if (py::hasattr(array, "__dlpack_device__")) {
    try {
      const py::tuple device = array.attr("__dlpack_device__")();
      return is_on_gpu(device[0].cast<int>());
    } catch (const py::error_already_set&) {
      return false;  // `memory_of` says what it is
    }
  }
  return py::hasattr(array, "__cuda_array_interface__");
}

void Handle::sweep() {
  pool_->sweep();
  if (staged_.empty()) return;
  const auto ended = std::stable_partition(staged_.begin(), staged_.end(),
                                           [](const Staged& staged) { return !staged.transfer->ended(); });
  // They are let go last: that may run the user's code, which may come back here.
  std::vector<Staged> over(std::make_move_iterator(ended), std::make_move_iterator(staged_.end()));
  staged_.erase(ended, staged_.end());
  for (Staged& staged : over) {
    if (!staged.transfer->lost()) continue;
    (void)staged.in.release();  // nobody knows what the GPU still does with them: they are never let go
    (void)staged.out.release();
  }
}

bool Handle::finish_stage(Operation& operation, Nanoseconds timeout) {
  if (operation.stage == nullptr) return true;
  constexpr Nanoseconds kSignals = 100 * kMillisecond;  // so often the user may interrupt
  Stage& stage = *operation.stage;
  const Nanoseconds deadline = now_ns() + (timeout < 0 ? operation.timeout : timeout);
  {
    GilCaller caller;
    caller.let_go();
    bool interrupted = false;
    // The copy of a small result takes less time than to sleep and to be woken.
    const Nanoseconds awake = std::min(deadline, now_ns() + Transfer::kAwake);
    while (!stage.ended() && now_ns() < awake) ::sched_yield();
    while (!stage.ended() && now_ns() < deadline && !interrupted) {
      stage.sleep(std::min(kSignals, deadline - now_ns()));
      if (!stage.ended()) interrupted = caller.interrupted();
    }
    caller.finish();
  }
  if (!stage.ended()) {
    if (timeout >= 0) return false;
    native_->fail(ErrorKind::kCollectiveTimeout, native_->rank(),
                  operation.text() + ": its result is there, but the GPU has not copied it within " +
                      std::to_string(operation.timeout / kMillisecond) + " ms",
                  true);
    native_->check();
  }
  try {
    stage.finish();
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
  sweep();
  return true;
}

}  // namespace ddl
