// All other operations: their tensors are copied down, the CPU computes, and what it has written is copied up.
//
// The host waits for the copies down, as on a GPU it would not; but it learns nothing by that, as far as the ledger
// is concerned. What is copied up is still on its way when the operation returns. Only elements that the operation
// may have written are copied.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "copies.h"
#include "generator.h"
#include "streams.h"

namespace fake_torch {

namespace {

using Stack = torch::jit::Stack;

// They overwrite all of their first argument.
const std::set<std::string> kOverwrite = {"aten::normal_",    "aten::uniform_",     "aten::random_",
                                          "aten::bernoulli_", "aten::exponential_", "aten::cauchy_",
                                          "aten::geometric_", "aten::log_normal_"};
// On a GPU, too, the host waits for these, as the size or the answer depends on values.
const std::set<std::string> kSynchronize = {"aten::nonzero",  "aten::masked_select", "aten::equal",
                                            "aten::_unique2", "aten::unique_dim",    "aten::unique_consecutive"};
// Their indices may be on the CPU.
const std::set<std::string> kTakeCpu = {"aten::index", "aten::index_put", "aten::_index_put_impl",
                                        "aten::_unsafe_index", "aten::_unsafe_index_put"};

bool on_device(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kFake; }

bool written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::string without_underscore(std::string name) {
  if (!name.empty() && name.back() == '_') name.pop_back();
  return name;
}

// One operation: the tensors of the device that it was given, and what stands for them on the CPU.
class OnCpu {
 public:
  OnCpu(const c10::OperatorHandle& op, Stack* stack)
      : op_(op), name_(op.schema().name()), stack_(stack), count_(op.schema().arguments().size()) {}

  void run() {
    find_device();
    const c10::DeviceGuard guard(device_);
    stream_.emplace(current_stream(device_.index()));
    for (size_t index = 0; index < count_; ++index) queue_downloads(index);
    for (auto& entry : on_way_) stand_for(entry.first, entry.second.wait());
    for (size_t index = 0; index < count_; ++index) argument(index) = on_cpu(argument(index), index);
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      call();
    }
    for (const at::Tensor& tensor : written_) write(tensor);
    for (size_t index = stack_->size() - op_.schema().returns().size(); index < stack_->size(); ++index) {
      (*stack_)[index] = on_device_again((*stack_)[index]);
    }
    if (kSynchronize.count(name_) != 0) synchronize(*stream_);
  }

 private:
  c10::IValue& argument(size_t index) { return (*stack_)[stack_->size() - count_ + index]; }

  template <typename Visit>
  static void for_each_tensor(const c10::IValue& value, const Visit& visit) {
    if (value.isTensor()) {
      if (value.toTensor().defined()) visit(value.toTensor());
    } else if (value.isList()) {
      for (const c10::IValue& item : value.toListRef()) {
        if (!item.isTensor()) return;
        if (item.toTensor().defined()) visit(item.toTensor());
      }
    }
  }

  void find_device() {
    std::optional<c10::Device> device, asked;
    bool large_cpu = false;
    for (size_t index = 0; index < count_; ++index) {
      if (argument(index).isDevice()) asked = argument(index).toDevice();
      for_each_tensor(argument(index), [&](const at::Tensor& tensor) {
        if (!on_device(tensor)) {
          large_cpu = large_cpu || tensor.dim() > 0;
          return;
        }
        TORCH_CHECK(!device.has_value() || *device == tensor.device(), name_,
                    ": expected all tensors to be on the same device, but there are ", *device, " and ",
                    tensor.device());
        device = tensor.device();
      });
    }
    TORCH_CHECK(!device.has_value() || !large_cpu || kTakeCpu.count(without_underscore(name_)) != 0, name_,
                ": expected all tensors to be on the same device, but there are ", *device, " and cpu");
    if (!device.has_value()) device = asked;
    const bool given = device.has_value() && device->type() == kFake && device->has_index();
    device_ = {kFake, static_cast<c10::DeviceIndex>(given ? device->index() : current_device())};
  }

  bool writes(size_t index) const {
    // These know only by their documentation that they update the running statistics.
    if (name_ == "aten::native_batch_norm" || name_ == "aten::batch_norm_update_stats") {
      if (index == 3 || index == 4) return true;
    }
    return written(op_.schema().arguments()[index]);
  }

  // A result for which the caller has given the memory, or what is all overwritten: nobody reads what is in it.
  bool only_writes(size_t index) const {
    const c10::Argument& argument = op_.schema().arguments()[index];
    return written(argument) && (argument.kwarg_only() || (index == 0 && kOverwrite.count(name_) != 0));
  }

  void queue_downloads(size_t index) {
    for_each_tensor(argument(index), [&](const at::Tensor& tensor) {
      if (!on_device(tensor)) return;
      if (writes(index)) written_.push_back(tensor);
      if (only_writes(index)) {
        stand_for(tensor, result_for(tensor));
      } else if (on_way_.count(tensor) == 0) {
        on_way_.try_emplace(tensor, tensor, *stream_);
      }
    });
  }

  // Losses want to have a result that is not yet reduced, and warn if it is.
  static at::Tensor result_for(const at::Tensor& tensor) {
    const auto options = tensor.options().device(at::kCPU);
    if (tensor.dim() == 0) return at::empty_strided({0}, {1}, options);
    return at::empty_strided(tensor.sizes(), tensor.strides(), options);
  }

  void stand_for(const at::Tensor& tensor, const at::Tensor& cpu) {
    cpus_.insert_or_assign(tensor.unsafeGetTensorImpl(), cpu);
    devices_.insert_or_assign(cpu.unsafeGetTensorImpl(), tensor);
  }

  at::Tensor cpu_of(const at::Tensor& tensor) const {
    return on_device(tensor) ? cpus_.at(tensor.unsafeGetTensorImpl()) : tensor;
  }

  c10::IValue on_cpu(const c10::IValue& value, size_t index) {
    if (value.isTensor()) return cpu_of(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : value.toListRef()) list.push_back(cpu_of(item.toTensor()));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const c10::IValue& item : value.toListRef()) {
        list.push_back(item.isTensor() ? std::optional<at::Tensor>(cpu_of(item.toTensor())) : std::nullopt);
      }
      return list;
    }
    if (value.isDevice()) return c10::Device(at::kCPU);
    const auto* const type = op_.schema().arguments()[index].type().get();
    const auto kind = type->kind() == c10::TypeKind::OptionalType ? type->containedType(0)->kind() : type->kind();
    if (kind == c10::TypeKind::GeneratorType) {
      return generator_for_cpu(value.isGenerator() ? value.toGenerator() : at::Generator(), device_.index());
    }
    return value;
  }

  // Convolutions of a device that torch does not know have names of their own.
  void call() {
    if (name_ == "aten::convolution_overrideable") {
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "").callBoxed(stack_);
    } else if (name_ == "aten::convolution_backward_overrideable") {
      const at::Tensor& weight = argument(2).toTensor();
      const int64_t channels = argument(6).toBool() ? weight.size(1) * argument(8).toInt() : weight.size(0);
      stack_->insert(stack_->end() - static_cast<int64_t>(count_) + 3, c10::IValue(c10::List<int64_t>({channels})));
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "").callBoxed(stack_);
    } else {
      op_.callBoxed(stack_);
    }
  }

  void write(const at::Tensor& tensor) {
    const at::Tensor& cpu = cpus_.at(tensor.unsafeGetTensorImpl());
    if (cpu.sizes() != tensor.sizes()) tensor.resize_(cpu.sizes());
    upload(cpu, tensor, *stream_);
  }

  c10::IValue on_device_again(const c10::IValue& value) const {
    if (value.isTensor()) return device_of(value.toTensor());
    if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : value.toListRef()) list.push_back(device_of(item.toTensor()));
      return list;
    }
    return value;
  }

  at::Tensor device_of(const at::Tensor& cpu) const {
    if (!cpu.defined() || cpu.device().type() != at::kCPU) return cpu;
    const auto known = devices_.find(cpu.unsafeGetTensorImpl());
    if (known != devices_.end()) return known->second;
    for (const auto& [impl, tensor] : devices_) {  // the result is a view of an argument
      if (impl->has_storage() && impl->storage().is_alias_of(cpu.storage()) && cpu.dtype() == tensor.dtype()) {
        return tensor.as_strided(cpu.sizes(), cpu.strides(), tensor.storage_offset() + cpu.storage_offset());
      }
    }
    const auto options = cpu.options().device(device_).pinned_memory(false);
    const at::Tensor tensor = cpu.is_non_overlapping_and_dense()
                                  ? at::empty_strided(cpu.sizes(), cpu.strides(), options)
                                  : at::empty_strided(cpu.sizes(), cpu.contiguous().strides(), options);
    upload(cpu, tensor, *stream_);
    return tensor;
  }

  struct ByIdentity {
    bool operator()(const at::Tensor& a, const at::Tensor& b) const {
      return a.unsafeGetTensorImpl() < b.unsafeGetTensorImpl();
    }
  };

  const c10::OperatorHandle& op_;
  const std::string name_;
  Stack* const stack_;
  const size_t count_;
  c10::Device device_{kFake, 0};
  std::optional<c10::Stream> stream_;
  std::map<at::Tensor, Download, ByIdentity> on_way_;
  std::map<const c10::TensorImpl*, at::Tensor> cpus_;     // by the tensor on the device
  std::map<const c10::TensorImpl*, at::Tensor> devices_;  // by the tensor of the CPU
  std::vector<at::Tensor> written_;
};

void run_on_cpu(const c10::OperatorHandle& op, Stack* stack) { OnCpu(op, stack).run(); }

}  // namespace

}  // namespace fake_torch

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fake_torch::run_on_cpu>());
}

// The latter two have a kernel for any device, made of others: here they are to give what the CPU's own ones give.
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  for (const char* const name :
       {"convolution_overrideable", "convolution_backward_overrideable", "native_layer_norm", "native_group_norm"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fake_torch::run_on_cpu>());
  }
}
