// The TensorFlow op "DdlCall": a call of DDL's on some tensors, which Python makes while the executor goes on.
//
// Compiled on demand against the TensorFlow that is installed (_native.py). A kernel puts its call into a queue and
// returns; a thread of Python's takes it from there (_native.py again), and the op ends when that thread says so. A
// small call runs in the kernel's thread if it need not sleep; otherwise Python puts it into the queue.
// Not stateful: TensorFlow would run all stateful ops of a function one after the other. An op that is not stateful
// it may run only once, when it simplifies a graph, if all inputs are constant; the input "anchor" never is. A call
// that has to run though nobody uses its result, such as a barrier, is "DdlCallAlways", which is stateful.
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

namespace tf = tensorflow;

constexpr int kFirst = 1;  // of the inputs after the anchor
constexpr int kDimensions = 16;
constexpr int64_t kSmall = int64_t{1} << 20;  // bytes: what is larger leaves time to wake another thread
constexpr int kFew = 8;                       // tensors at most

// Owned by the queue, then by who has taken it, until ddl_end. Inputs live as long as the context: until `done`.
struct Call {
  int64_t number;  // in Python's table
  tf::OpKernelContext* context;
  tf::AsyncOpKernel::DoneCallback done;
  std::vector<tf::Tensor*> outputs;
};

// Any thread puts, any thread takes.
class Queue {
 public:
  void put(Call* call) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      calls_.push_back(call);
    }
    ready_.notify_one();
  }
  // Null when the time has run out.
  Call* take(double seconds) {
    std::unique_lock<std::mutex> lock(mutex_);
    ready_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return !calls_.empty(); });
    if (calls_.empty()) return nullptr;
    Call* const call = calls_.front();
    calls_.pop_front();
    return call;
  }

 private:
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Call*> calls_;
};

Queue& queue() {
  static Queue* const only = new Queue;  // never destroyed: Python's threads may wait for it until the process ends
  return *only;
}

// What Python sees; the structures are written down again in _native.py.
extern "C" {

// Which call it is, and where in its graph: the node's name lives until ddl_end, and `loop` and `iteration` say which
// run of it; they are the same in all processes that run the same graph.
struct DdlPlace {
  int64_t number;
  const char* node;
  uint64_t loop;
  int64_t iteration;
  int32_t inputs;
  int32_t outputs;  // that are there already, as they are alike
};

struct DdlView {
  void* data;
  int64_t bytes;
  int32_t type;  // of TensorFlow's enumeration
  int32_t dimensions;
  int64_t shape[kDimensions];  // of the first dimensions, if there are more
};

// 1: the call is made, and the op may end; 0: it goes on, and ddl_end will end it.
using DdlMakeAtOnce = int32_t (*)(void* call, const DdlPlace*, const DdlView*);

}  // extern "C"

DdlPlace place_of(const Call& call) {
  const tf::FrameAndIter run = call.context->frame_iter();
  return {call.number, call.context->op_kernel().name().c_str(), run.frame_id,
          run.iter_id, call.context->num_inputs() - kFirst,      static_cast<int32_t>(call.outputs.size())};
}

// The inputs and the outputs that are there, behind one another.
void show(const Call& call, DdlView* views) {
  const auto add = [&](const tf::Tensor& tensor) {
    *views = {tensor.data(), static_cast<int64_t>(tensor.TotalBytes()), tensor.dtype(), tensor.dims(), {}};
    for (int d = 0; d < tensor.dims() && d < kDimensions; ++d) views->shape[d] = tensor.dim_size(d);
    ++views;
  };
  for (int i = kFirst; i < call.context->num_inputs(); ++i) add(call.context->input(i));
  for (const tf::Tensor* const output : call.outputs) add(*output);
}

void end(Call* call) {
  const tf::AsyncOpKernel::DoneCallback done = std::move(call->done);
  delete call;
  done();
}

std::atomic<DdlMakeAtOnce> make_at_once{nullptr};

bool small(const Call& call) {
  const int inputs = call.context->num_inputs();
  int64_t bytes = 0;
  for (int i = kFirst; i < inputs; ++i) bytes += static_cast<int64_t>(call.context->input(i).TotalBytes());
  return inputs - kFirst <= kFew && bytes <= kSmall;
}

class DdlCall : public tf::AsyncOpKernel {
 public:
  explicit DdlCall(tf::OpKernelConstruction* construction) : AsyncOpKernel(construction) {
    OP_REQUIRES_OK(construction, construction->GetAttr("call", &number_));
    OP_REQUIRES_OK(construction, construction->GetAttr("alike", &alike_));
    OP_REQUIRES_OK(construction, construction->GetAttr("at_once", &at_once_));
  }

  void ComputeAsync(tf::OpKernelContext* context, DoneCallback done) override {
    std::vector<tf::Tensor*> outputs;
    for (int i = 0; alike_ && i + kFirst < context->num_inputs(); ++i) {
      tf::Tensor* out = nullptr;
      OP_REQUIRES_OK_ASYNC(
          context,
          context->forward_input_or_allocate_output({i + kFirst}, i, context->input(i + kFirst).shape(), &out), done);
      outputs.push_back(out);
    }
    Call* const call = new Call{number_, context, std::move(done), std::move(outputs)};
    const DdlMakeAtOnce make = make_at_once.load();
    if (make == nullptr || !at_once_ || !small(*call)) {
      queue().put(call);
      return;
    }
    DdlView views[2 * kFew];
    const DdlPlace place = place_of(*call);
    show(*call, views);
    if (make(call, &place, views) != 0) end(call);
  }

 private:
  int64_t number_;
  bool alike_;
  bool at_once_;
};

absl::Status infer_shapes(tf::shape_inference::InferenceContext* c) {
  bool alike;
  TF_RETURN_IF_ERROR(c->GetAttr("alike", &alike));
  for (int i = 0; i < c->num_outputs(); ++i) {
    c->set_output(i, alike ? c->input(i + kFirst) : c->UnknownShape());
  }
  return absl::OkStatus();
}

#define DDL_CALL_OP(name)         \
  REGISTER_OP(name)               \
      .Input("anchor: uint8")     \
      .Input("inputs: T")         \
      .Output("outputs: R")       \
      .Attr("T: list(type) >= 0") \
      .Attr("R: list(type) >= 0") \
      .Attr("call: int")          \
      .Attr("alike: bool")        \
      .Attr("at_once: bool")      \
      .SetShapeFn(infer_shapes)

DDL_CALL_OP("DdlCall");
DDL_CALL_OP("DdlCallAlways").SetIsStateful();
REGISTER_KERNEL_BUILDER(Name("DdlCall").Device(tf::DEVICE_CPU), DdlCall);
REGISTER_KERNEL_BUILDER(Name("DdlCallAlways").Device(tf::DEVICE_CPU), DdlCall);

// Where TensorFlow places the op on a GPU, it copies all tensors to the host and back itself: its streams are its
// own.
#define DDL_CALL_ON_GPU(name) \
  REGISTER_KERNEL_BUILDER(    \
      Name(name).Device(tf::DEVICE_GPU).HostMemory("anchor").HostMemory("inputs").HostMemory("outputs"), DdlCall)
DDL_CALL_ON_GPU("DdlCall");
DDL_CALL_ON_GPU("DdlCallAlways");

}  // namespace

extern "C" {

// From now on small calls go to `make`.
void ddl_make_at_once(DdlMakeAtOnce make) { make_at_once.store(make); }

// Has a call that `make` has begun taken from the queue.
void ddl_put(void* handle) { queue().put(static_cast<Call*>(handle)); }

void ddl_show(void* handle, DdlView* views) { show(*static_cast<Call*>(handle), views); }

// Waits so many seconds for a call at most; null: there was none. Shows its tensors, too, if there is room for them.
void* ddl_take(double seconds, DdlPlace* place, DdlView* views, int32_t room) {
  Call* const call = queue().take(seconds);
  if (call == nullptr) return nullptr;
  *place = place_of(*call);
  if (place->inputs + place->outputs <= room) show(*call, views);
  return call;
}

// Makes output `number` and copies `data` to it; 0 if there is no memory or no such output.
int32_t ddl_output(void* handle, int32_t number, int32_t dimensions, const int64_t* shape, const void* data) {
  auto* const call = static_cast<Call*>(handle);
  tf::TensorShape wanted;
  tf::Tensor* out = nullptr;
  for (int d = 0; d < dimensions; ++d) {
    if (!wanted.AddDimWithStatus(shape[d]).ok()) return 0;
  }
  if (number >= call->context->num_outputs() || !call->context->allocate_output(number, wanted, &out).ok()) return 0;
  std::memcpy(out->data(), data, out->TotalBytes());
  return 1;
}

// Ends the op: well, or with what `error` says, if it is not null; `code` is one of absl::StatusCode.
void ddl_end(void* handle, int32_t code, const char* error) {
  auto* const call = static_cast<Call*>(handle);
  if (error != nullptr) call->context->SetStatus(absl::Status(static_cast<absl::StatusCode>(code), error));
  end(call);
}

}  // extern "C"
