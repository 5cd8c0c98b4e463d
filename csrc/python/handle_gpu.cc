// Arrays on a GPU: their way to the host and back, around an operation on the copies.
#include <sched.h>

#include <algorithm>
#include <iterator>
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

// An array of an operation as its transfer needs it; nothing if it is in memory of the host.
StagedArray staged_array(const ArrayView& view, const Operation& operation, BufferId buffer) {
  StagedArray array;
  if (view.on_gpu == nullptr) return array;
  array.device = reinterpret_cast<DevicePointer>(view.data);
  array.bytes = view.bytes();
  for (uint64_t piece = 0; piece < operation.pieces; ++piece) {
    array.pieces.push_back(ranges_of(operation, buffer, piece));
  }
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
  return operation.stage != nullptr && static_cast<const Transfer&>(*operation.stage).can_wait_on();
}

bool Handle::wait_on(Operation& operation, uintptr_t stream) {
  if (operation.stage == nullptr) return false;
  if (operation.work.done()) operation.work.check();
  try {
    return let_go([&] { return static_cast<Transfer&>(*operation.stage).wait_on(stream_handle(stream)); });
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
}

void Handle::stage(Operation* operation, const Views& views) {
  const char* const what = name(operation->descriptor.collective);
  const ArrayView &in = views.in, &out = views.out;
  const OnGpu& place = in.on_gpu != nullptr ? *in.on_gpu : *out.on_gpu;
  const std::shared_ptr<Gpu>& gpu = place.gpu;
  if (out.on_gpu != nullptr && out.on_gpu->gpu != gpu) {
    refuse(what, "the input is on GPU " + std::to_string(gpu->device()) + ", but the target is on GPU " +
                     std::to_string(out.on_gpu->gpu->device()));
  }
  std::vector<StreamHandle> producers;
  for (const ArrayView* view : {&in, &out}) {
    if (view->on_gpu != nullptr && view->on_gpu->ordered) producers.push_back(view->on_gpu->stream);
  }
  StagedArray down, up;
  if (views.has_in) down = staged_array(in, *operation, BufferId::kInput);
  if (views.has_out) up = staged_array(out, *operation, BufferId::kOutput);
  try {
    const bool ordered = operation->descriptor.collective < Collective::kSend;
    CopyStreams* const streams = streams_of(gpu, !ordered);
    const std::shared_ptr<Transfer> transfer =
        let_go([&] { return gpu->prepare(streams, std::move(down), std::move(up), operation->pieces, ordered); });
    staged_.push_back({transfer, in.owner, out.owner});  // if `begin` throws, copies may be under way all the same
    let_go([&] { gpu->begin(transfer, producers); });
    operation->stage = transfer;
    if (transfer->in_host() != nullptr) operation->input = transfer->in_host();
    if (transfer->out_host() != nullptr) operation->output = transfer->out_host();
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
  for (const ArrayView* view : {&in, &out}) {
    if (view->on_gpu != nullptr && view->on_gpu->gate != nullptr) view->on_gpu->gate->pass();
  }
  const std::string refusal = Slabs::process().take_refusal();
  if (refusal.empty()) return;
  const std::string text = "GPUs cannot read host memory directly here (" + refusal +
                           "), so arrays on a GPU take a slower way, and calls with them may block";
  if (PyErr_WarnEx(PyExc_RuntimeWarning, text.c_str(), 1) == 0) return;
  static_cast<Transfer&>(*operation->stage).cancel();
  throw py::error_already_set();
}

bool Handle::on_gpu(const py::object& array) {
  if (py::isinstance<GpuMemory>(array)) return true;
  if (py::hasattr(array, "__dlpack_device__")) {
    const py::tuple device = array.attr("__dlpack_device__")();
    return is_on_gpu(device[0].cast<int>());
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
  Transfer& transfer = static_cast<Transfer&>(*operation.stage);
  const Nanoseconds deadline = now_ns() + (timeout < 0 ? operation.timeout : timeout);
  {
    GilCaller caller;
    caller.let_go();
    bool interrupted = false;
    // The copy of a small result takes less time than to sleep and to be woken.
    const Nanoseconds awake = std::min(deadline, now_ns() + Transfer::kAwake);
    while (!transfer.ended() && now_ns() < awake) ::sched_yield();
    while (!transfer.ended() && now_ns() < deadline && !interrupted) {
      transfer.sleep(std::min(kSignals, deadline - now_ns()));
      if (!transfer.ended()) interrupted = caller.interrupted();
    }
    caller.finish();
  }
  if (!transfer.ended()) {
    if (timeout >= 0) return false;
    native_->fail(ErrorKind::kCollectiveTimeout, native_->rank(),
                  operation.text() + ": its result is there, but the GPU has not copied it within " +
                      std::to_string(operation.timeout / kMillisecond) + " ms",
                  true);
    native_->check();
  }
  try {
    transfer.finish();
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
  sweep();
  return true;
}

}  // namespace ddl
