#include "python/handle.h"

#include <algorithm>
#include <string>
#include <utility>

#include "python/call_checks.h"
#include "python/gil.h"
#include "reduce/widen.h"

namespace py = pybind11;

namespace ddl {

namespace {

constexpr Nanoseconds kPatience = 5 * kSecond;  // with a GPU that does not answer, at the end

void release(void* kept) { Py_DECREF(static_cast<PyObject*>(kept)); }

// As users write it.
std::string operator_name(ReduceOp op) {
  std::string text = name(op);
  text[0] = static_cast<char>(text[0] - 'a' + 'A');
  return "ddl." + text;
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
  set_milestone(std::numeric_limits<uint64_t>::max(), py::none());
}

Handle::Arrays Handle::look_at(const Call& call, const py::object& input, const py::object& output) const {
  try {
    return arrays_of(call, input, output);
  } catch (const DriverError& error) {
    driver_has_refused(error);
  }
}

Handle::Arrays Handle::arrays_of(const Call& call, const py::object& input, const py::object& output) const {
  const char* const what = name(call.collective);
  Arrays arrays;
  const bool in_place = output.is(input);
  arrays.has_in = !input.is_none();
  arrays.has_out = !output.is_none();
  if (!arrays.has_in || !arrays.has_out) check_given(call, arrays.has_in, arrays.has_out, native_->rank());
  if (arrays.has_in) arrays.in = memory_of(input, what, in_place);
  if (in_place) {
    arrays.out = arrays.in;
  } else if (arrays.has_out) {
    arrays.out = memory_of(output, what, true);
  }
  if (arrays.has_in && arrays.has_out && !in_place) {
    if (!(arrays.in.type == arrays.out.type)) {
      refuse(what, "input is " + arrays.in.type.name() + " but the target is " + arrays.out.type.name());
    }
    if (!traits(call.collective).in_blocks() && arrays.in.count != arrays.out.count) {
      refuse(what, "input has " + std::to_string(arrays.in.count) + " elements but the target has " +
                       std::to_string(arrays.out.count));
    }
  }
  const ElementType type = arrays.any().type;
  if (call.op == ReduceOp::kAverage && type.dtype == DType::kBool && (arrays.has_in || arrays.has_out)) {
    throw Error(ErrorKind::kInvalidArgument, "bool has no average; use op=Min (all) or op=Max (any)");
  }
  if (type.is_complex() && traits(call.collective).reduces && call.op != ReduceOp::kSum &&
      call.op != ReduceOp::kAverage) {
    refuse(what,
           "complex numbers can be averaged and summed; op=" + operator_name(call.op) + " is not defined for them");
  }
  if (call.op == ReduceOp::kAverage && arrays.has_in && is_narrow(type.dtype)) widen(what, &arrays);
  if (call.residual && !call.residual.is_none()) {
    const Memory residual = host_memory_of(call.residual, "residual", true);
    if (!(residual.type == ElementType{DType::kFloat32, 1}) || residual.count != arrays.any().numbers()) {
      refuse(what, "the residual is " + std::to_string(residual.count) + " of " + residual.type.name() +
                       "; it must be " + std::to_string(arrays.any().numbers()) + " of float32");
    }
    arrays.residual = residual.data;
  }
  return arrays;
}

// The operation gets copies of the arrays, of 64 bits.
void Handle::widen(const char* what, Arrays* arrays) {
  Memory &in = arrays->in, &out = arrays->out;
  const std::string type = in.type.name();
  if (arrays->on_gpu()) {
    refuse(what, "numbers of " + type +
                     " may add up to more than the type holds before they are divided; pass them as int64");
  }
  arrays->widened = std::make_shared<WideAverage>(in.type.dtype, in.data, in.count,
                                                  arrays->has_out ? out.data : nullptr, out.count);
  in.data = arrays->widened->in();
  if (arrays->has_out) out.data = arrays->widened->out();
  in.type.dtype = out.type.dtype = DType::kInt64;
}

// The length of each block in numbers, if the arrays hold exactly the blocks. 0 if there are no blocks.
uint64_t Handle::block_length(Collective collective, const Arrays& arrays, uint64_t rank, uint64_t size) {
  const uint64_t in = arrays.in.count, out = arrays.out.count;
  const CollectiveTraits& known = traits(collective);
  if (!known.in_blocks() || known.rooted) return 0;
  const bool whole = known.input.content == Content::kBlocks;
  if (whole && in % size != 0) {
    refuse(name(collective), std::to_string(in) + " elements do not divide among the ranks");
  }
  const uint64_t part = whole ? in / size : in;
  const uint64_t wanted = known.output.content == Content::kBlocks ? part * size : part;
  if (out != wanted) {
    refuse(name(collective), "out has " + std::to_string(out) + " elements, but " + std::to_string(wanted) +
                                 " are to come (" + std::to_string(size) + " ranks, " + std::to_string(in) +
                                 " elements each)");
  }
  // The only overlap that is allowed: the smaller array is this rank's own block of the larger.
  const char *const a = arrays.in.data, *const b = arrays.out.data;
  const bool apart = a + arrays.in.bytes() <= b || b + arrays.out.bytes() <= a;
  const uint64_t width = arrays.in.type.width;
  const uint64_t own = rank * part * width * element_size(arrays.in.type.dtype);
  const bool own_block = (known.input.content == Content::kBlock && a == b + own) ||
                         (known.output.content == Content::kBlock && b == a + own);
  if (!apart && !own_block) {
    refuse(name(collective), "out overlaps the input, other than as this rank's own block; pass another array");
  }
  return part * width;
}

// Call before an operation is taken from the pool: the planner is Python, so other threads may use the pool
// meanwhile.
void Handle::plan(const Call& call) {
  const bool usual = call.root >= 0 && call.root < native_->size() && !is_message(call.collective);
  if (!usual) check_root(call, native_->rank(), native_->size());
  native_->check();
  if (!is_message(call.collective)) pass_milestone();
  if (!native_->installed(call.collective, call.root)) planner_(static_cast<int>(call.collective), call.root);
}

// The function is Python, and makes calls of its own.
void Handle::call_at_milestone() {
  native_->check();
  const py::object function = std::move(at_milestone_);
  set_milestone(std::numeric_limits<uint64_t>::max(), py::none());
  function();
}

void Handle::renew(Operation* operation) {
  pass_milestone();
  if (operation->edition != native_->edition()) native_->prepare(operation);
}

// The operation has the lengths of its blocks already.
void Handle::fill(Operation* operation, const Call& call, const Arrays& arrays) {
  Descriptor& d = operation->descriptor;
  d.collective = call.collective;
  d.root = call.root;
  d.op = call.op;
  d.sizes_for = static_cast<uint8_t>(call.sizes_for);
  if (arrays.has_in || arrays.has_out) {
    const Memory& any = arrays.any();
    d.widened = arrays.widened != nullptr;
    d.dtype = d.widened ? arrays.widened->dtype() : any.type.dtype;
    d.pairs = any.type.is_complex();
    operation->count = any.numbers();
    operation->bytes = call.bytes != 0 ? call.bytes : std::max(arrays.in.bytes(), arrays.out.bytes());
    const std::vector<uint64_t>& parts = operation->part_lengths;
    d.count = call.count_differs ? 0 : parts.size() == 1 ? parts[0] : any.numbers();
  }
  point(operation, arrays);
  native_->prepare(operation);
  if (arrays.on_gpu()) stage(operation, arrays);
  if (arrays.widened != nullptr) operation->stage = arrays.widened;
}

void Handle::point(Operation* operation, const Arrays& arrays) {
  operation->input = arrays.has_in ? arrays.in.data : nullptr;
  operation->output = arrays.has_out ? arrays.out.data : nullptr;
  operation->residual = arrays.residual;
}

std::shared_ptr<Operation> Handle::operation(const Call& call, const py::object& input, const py::object& output) {
  plan(call);
  const Arrays arrays = look_at(call, input, output);
  check_lengths(call, arrays.has_in ? &arrays.in : nullptr, arrays.has_out ? &arrays.out : nullptr, native_->rank(),
                native_->size());
  std::shared_ptr<Operation> operation = pool_->take();
  operation->part_lengths = call.part_lengths;
  for (uint64_t& length : operation->part_lengths) length *= arrays.any().type.width;
  fill(operation.get(), call, arrays);
  return operation;
}

std::shared_ptr<Operation> Handle::prepared(const Call& call, const py::object& buffer) {
  if (traits(call.collective).in_blocks())
    refuse(name(call.collective), "it cannot be prepared: its buffers are not the same");
  plan(call);
  const Arrays arrays = look_at(call, buffer, buffer);
  if (arrays.copied()) return nullptr;
  auto operation = std::make_shared<Operation>();
  fill(operation.get(), call, arrays);
  return operation;
}

std::shared_ptr<Operation> Handle::reuse_last(const Call& call, const py::object& input, const py::object& output) {
  std::shared_ptr<Operation>& last = last_[static_cast<size_t>(call.collective)];
  plan(call);
  const Arrays arrays = look_at(call, input, output);
  const uint64_t part = block_length(call.collective, arrays, static_cast<uint64_t>(native_->rank()),
                                     static_cast<uint64_t>(native_->size()));
  const bool free = last != nullptr && last.use_count() == 1 && !arrays.copied();  // else another thread uses it
  if (free && last->descriptor.root == call.root && last->descriptor.op == call.op &&
      last->descriptor.dtype == arrays.any().type.dtype && last->descriptor.pairs == arrays.any().type.is_complex() &&
      last->count == arrays.any().numbers() && (last->part_lengths.empty() || last->part_lengths[0] == part)) {
    point(last.get(), arrays);
    if (last->edition != native_->edition()) native_->prepare(last.get());
    return last;
  }
  const bool first = last == nullptr && !arrays.copied();
  const std::shared_ptr<Operation> operation = first ? std::make_shared<Operation>() : free ? last : pool_->take();
  if (traits(call.collective).in_blocks()) {
    operation->part_lengths.assign(1, part);
  } else {
    operation->part_lengths.clear();
  }
  fill(operation.get(), call, arrays);
  if (first) last = operation;
  return operation;
}

std::shared_ptr<Operation> Handle::foreign(const DdlNativeCall& given) {
  Call call;
  call.collective = collective_from(given.collective);
  call.op = reduce_op_from(given.op);
  call.root = given.root;
  DType dtype;
  if (!from_wire(static_cast<uint8_t>(given.dtype), &dtype)) {
    refuse(name(call.collective), "there is no type number " + std::to_string(given.dtype));
  }
  native_->check();
  const bool planned = native_->installed(call.collective, call.root);
  if (!planned || (!is_message(call.collective) && native_->submitted() >= milestone_)) {
    const py::gil_scoped_acquire locked;
    plan(call);
  }
  auto operation = std::make_shared<Operation>();
  Descriptor& d = operation->descriptor;
  d.collective = call.collective;
  d.root = call.root;
  d.op = call.op;
  d.dtype = dtype;
  operation->input = static_cast<const char*>(given.input);
  operation->output = static_cast<char*>(given.output);
  operation->count = given.count;
  if (given.part != 0) operation->part_lengths.assign(1, given.part);
  d.count = given.part != 0 ? given.part : given.count;
  const uint64_t blocks = given.part != 0 ? static_cast<uint64_t>(native_->size()) : 0;
  operation->bytes = std::max(given.count, given.part * blocks) * element_size(dtype);
  native_->prepare(operation.get());
  return operation;
}

bool Handle::run(const std::shared_ptr<Operation>& operation, bool sleeps) {
  operation->open = false;
  sweep();
  if (operation->stage != nullptr && !sleeps) {  // what a GPU does takes longer than anybody would stay awake
    submit(operation);
    return false;
  }
  follow_stage(*operation, false);
  GilCaller caller(sleeps);
  bool done = false;
  try {
    done = native_->run(operation, &caller);
  } catch (...) {
    if (operation->stage != nullptr) operation->stage->cancel();
    throw;
  }
  caller.finish();
  if (!done) return false;
  operation->work.check();
  return operation->stage == nullptr || finish_stage(*operation, -1);
}

void Handle::submit(const std::shared_ptr<Operation>& operation) {
  try {
    native_->submit(operation);
  } catch (...) {
    cancel_stage(*operation);
    throw;
  }
  follow_stage(*operation, true);
}

void Handle::start(const std::shared_ptr<Operation>& operation, const py::object& kept) {
  sweep();
  submit(operation);
  // Arrays on a GPU are kept by `staged_`, too, until the GPU has ended.
  operation->kept = py::object(kept).release().ptr();
  operation->open = false;
}

bool Handle::wait(Operation& operation, Nanoseconds timeout) {
  GilCaller caller;
  const bool done = native_->wait(operation, timeout, &caller);
  caller.finish();
  if (done) sweep();
  return done;
}

bool Handle::done(const Operation& operation) {
  return operation.work.done() && (operation.stage == nullptr || operation.stage->ended());
}

}  // namespace ddl
