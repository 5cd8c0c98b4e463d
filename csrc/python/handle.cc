#include "python/handle.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "device/slabs.h"
#include "engine/buffers.h"
#include "python/call_checks.h"
#include "python/gil.h"

namespace py = pybind11;

namespace ddl {

namespace {

constexpr Nanoseconds kPatience = 5 * kSecond;  // with a GPU that does not answer, at the end

void release(void* kept) { Py_DECREF(static_cast<PyObject*>(kept)); }

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

Handle::Handle(const CommunicatorOptions& options)
    : native_(std::make_unique<Communicator>(options)), pool_(std::make_unique<OperationPool>(release)) {}

Handle::~Handle() {
  // A forked child never touches its copy: the threads exist only in the parent.
  if (!native_->owned()) {
    (void)native_.release();
    (void)pool_.release();
    (void)new std::vector<Staged>(std::move(staged_));
    (void)new std::vector<UsedGpu>(std::move(used_));
    return;
  }
  shutdown();
}

void Handle::shutdown() {
  if (!native_->owned()) return;
  {
    const py::gil_scoped_release released;
    native_->shutdown();
  }
  // Other threads may come in between whenever the lock is released, so what is waited for is taken out first.
  std::vector<std::shared_ptr<Transfer>> under_way;
  for (const Staged& staged : staged_) under_way.push_back(staged.transfer);
  {
    const py::gil_scoped_release released;
    const Nanoseconds deadline = now_ns() + kPatience;
    for (const auto& transfer : under_way) {
      while (!transfer->ended() && now_ns() < deadline) transfer->sleep(10 * kMillisecond);
    }
  }
  sweep();
  // A GPU that does not answer may still use these arrays: they are never let go.
  std::vector<Staged> unanswered;
  unanswered.swap(staged_);
  for (Staged& staged : unanswered) {
    (void)staged.in.release();
    (void)staged.out.release();
  }
  std::vector<UsedGpu> used;
  used.swap(used_);
  if (!unanswered.empty()) {
    (void)new std::vector<UsedGpu>(std::move(used));  // it still uses the streams, too
    (void)new std::vector<Staged>(std::move(unanswered));
  }
  {
    const py::gil_scoped_release released;
    used.clear();
  }
  planner_ = py::none();
}

Handle::Views Handle::look_at(const Call& call, const py::object& input, const py::object& output) const {
  try {
    return views_of(call, input, output);
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
}

Handle::Views Handle::views_of(const Call& call, const py::object& input, const py::object& output) const {
  const char* const what = name(call.collective);
  Views views;
  const bool in_place = output.is(input);
  views.has_in = !input.is_none();
  views.has_out = !output.is_none();
  if (!views.has_in || !views.has_out) check_given(call, views.has_in, views.has_out, native_->rank());
  if (views.has_in) views.in = view_anywhere(input, what, in_place);
  if (in_place) {
    views.out = views.in;
  } else if (views.has_out) {
    views.out = view_anywhere(output, what, true);
  }
  if (views.has_in && views.has_out && !in_place) {
    if (views.in.dtype != views.out.dtype) {
      refuse(what, std::string("input is ") + name(views.in.dtype) + " but the target is " + name(views.out.dtype));
    }
    if (!in_blocks(call.collective) && views.in.count != views.out.count) {
      refuse(what, "input has " + std::to_string(views.in.count) + " elements but the target has " +
                       std::to_string(views.out.count));
    }
  }
  if (call.op == ReduceOp::kAverage && views.any().dtype == DType::kBool && (views.has_in || views.has_out)) {
    throw Error(ErrorKind::kInvalidArgument, "bool has no average; use op=Min (all) or op=Max (any)");
  }
  if (call.residual && !call.residual.is_none()) {
    const ArrayView residual = view_of(call.residual, "residual", true);
    if (residual.dtype != DType::kFloat32 || residual.count != views.any().count) {
      refuse(what, "the residual is " + std::to_string(residual.count) + " of " + name(residual.dtype) +
                       "; it must be " + std::to_string(views.any().count) + " of float32");
    }
    views.residual = residual.data;
  }
  return views;
}

// The length of each block, if the arrays hold exactly the blocks. 0 if there are no blocks.
uint64_t Handle::block_length(Collective collective, const Views& views, uint64_t rank, uint64_t size) {
  const uint64_t in = views.in.count, out = views.out.count;
  uint64_t part = 0, wanted = 0;
  switch (collective) {
    case Collective::kAllgather:
      part = in;
      wanted = in * size;
      break;
    case Collective::kReducescatter:
      if (in % size != 0) refuse("reducescatter", std::to_string(in) + " elements do not divide among the ranks");
      part = wanted = in / size;
      break;
    case Collective::kAlltoall:
      if (in % size != 0) refuse("alltoall", std::to_string(in) + " elements do not divide among the ranks");
      part = in / size;
      wanted = in;
      break;
    default:
      return 0;
  }
  if (out != wanted) {
    refuse(name(collective), "out has " + std::to_string(out) + " elements, but " + std::to_string(wanted) +
                                 " are to come (" + std::to_string(size) + " ranks, " + std::to_string(in) +
                                 " elements each)");
  }
  // The only overlap that is allowed: the smaller array is this rank's own block of the larger.
  const char *const a = views.in.data, *const b = views.out.data;
  const bool apart = a + views.in.bytes() <= b || b + views.out.bytes() <= a;
  const uint64_t own = rank * part * element_size(views.in.dtype);
  const bool own_block = (collective == Collective::kAllgather && a == b + own) ||
                         (collective == Collective::kReducescatter && b == a + own);
  if (!apart && !own_block) {
    refuse(name(collective), "out overlaps the input, other than as this rank's own block; pass another array");
  }
  return part;
}

// Call before an operation is taken from the pool: the planner is Python, so other threads may use the pool
// meanwhile.
void Handle::plan(const Call& call) {
  const bool usual = call.root >= 0 && call.root < native_->size() && call.collective < Collective::kSend;
  if (!usual) check_root(call, native_->rank(), native_->size());
  native_->check();
  if (!native_->installed(call.collective, call.root)) planner_(static_cast<int>(call.collective), call.root);
}

// The operation has the lengths of its blocks already.
void Handle::fill(Operation* operation, const Call& call, const Views& views) {
  Descriptor& d = operation->descriptor;
  d.collective = call.collective;
  d.root = call.root;
  d.op = call.op;
  d.sizes_for = static_cast<uint8_t>(call.sizes_for);
  if (views.has_in || views.has_out) {
    const ArrayView& any = views.any();
    d.dtype = any.dtype;
    operation->count = any.count;
    operation->bytes = call.bytes != 0 ? call.bytes : std::max(views.in.bytes(), views.out.bytes());
    const std::vector<uint64_t>& parts = operation->part_lengths;
    d.count = call.count_differs ? 0 : parts.size() == 1 ? parts[0] : any.count;
  }
  point(operation, views);
  native_->prepare(operation);
  if (views.on_gpu()) stage(operation, views);
}

void Handle::point(Operation* operation, const Views& views) {
  operation->input = views.has_in ? views.in.data : nullptr;
  operation->output = views.has_out ? views.out.data : nullptr;
  operation->residual = views.residual;
}

std::shared_ptr<Operation> Handle::operation(const Call& call, const py::object& input, const py::object& output) {
  plan(call);
  const Views views = look_at(call, input, output);
  check_lengths(call, views.has_in ? &views.in : nullptr, views.has_out ? &views.out : nullptr, native_->rank(),
                native_->size());
  std::shared_ptr<Operation> operation = pool_->take();
  operation->part_lengths = call.part_lengths;
  fill(operation.get(), call, views);
  return operation;
}

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

std::shared_ptr<Operation> Handle::prepared(const Call& call, const py::object& buffer) {
  if (in_blocks(call.collective))
    refuse(name(call.collective), "it cannot be prepared: its buffers are not the same");
  plan(call);
  const Views views = look_at(call, buffer, buffer);
  auto operation = std::make_shared<Operation>();
  fill(operation.get(), call, views);
  return operation;
}

std::shared_ptr<Operation> Handle::again(const Call& call, const py::object& input, const py::object& output) {
  std::shared_ptr<Operation>& last = last_[static_cast<size_t>(call.collective)];
  plan(call);
  const Views views = look_at(call, input, output);
  const uint64_t part = block_length(call.collective, views, static_cast<uint64_t>(native_->rank()),
                                     static_cast<uint64_t>(native_->size()));
  const bool free = last != nullptr && last.use_count() == 1 && !views.on_gpu();  // else another thread uses it
  if (free && last->descriptor.root == call.root && last->descriptor.op == call.op &&
      last->descriptor.dtype == views.any().dtype && last->count == views.any().count &&
      (last->part_lengths.empty() || last->part_lengths[0] == part)) {
    point(last.get(), views);
    return last;
  }
  const bool first = last == nullptr && !views.on_gpu();
  const std::shared_ptr<Operation> operation = first ? std::make_shared<Operation>() : free ? last : pool_->take();
  if (in_blocks(call.collective)) {
    operation->part_lengths.assign(1, part);
  } else {
    operation->part_lengths.clear();
  }
  fill(operation.get(), call, views);
  if (first) last = operation;
  return operation;
}

template <typename Submit>
void Handle::submit_staged(const std::shared_ptr<Operation>& operation, Submit submit) {
  try {
    submit();
  } catch (...) {
    if (operation->stage != nullptr) static_cast<Transfer&>(*operation->stage).cancel();
    throw;
  }
}

bool Handle::run(const std::shared_ptr<Operation>& operation, bool sleeps) {
  sweep();
  if (operation->stage != nullptr && !sleeps) {  // what a GPU does takes longer than anybody would stay awake
    submit_staged(operation, [&] { native_->submit(operation); });
    return false;
  }
  GilCaller caller(sleeps);
  bool done = false;
  submit_staged(operation, [&] { done = native_->run(operation, &caller); });
  caller.finish();
  if (!done) return false;
  operation->work.check();
  return operation->stage == nullptr || finish_stage(*operation, -1);
}

void Handle::start(const std::shared_ptr<Operation>& operation, const py::object& kept) {
  submit_staged(operation, [&] { native_->submit(operation); });
  // Arrays on a GPU are kept by `staged_`, too, until the GPU has ended.
  operation->kept = py::object(kept).release().ptr();
}

bool Handle::wait(Operation& operation, Nanoseconds timeout) {
  GilCaller caller;
  const bool done = native_->wait(operation, timeout, &caller);
  caller.finish();
  if (done) sweep();
  return done;
}

bool Handle::done(const Operation& operation) {
  const auto* const transfer = static_cast<const Transfer*>(operation.stage.get());
  return operation.work.done() && (transfer == nullptr || transfer->ended());
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
