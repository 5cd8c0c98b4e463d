// Mixed precision: which operations torch.autocast casts on this device. A choice of those that CUDA has.
#include <ATen/autocast_mode.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "streams.h"

namespace fake_torch {

namespace {

using Stack = torch::jit::Stack;

at::Tensor cast(const at::Tensor& tensor, at::ScalarType type) {
  return at::autocast::cached_cast(type, tensor, kFake);
}

void call_with(const c10::OperatorHandle& op, Stack* stack, at::ScalarType type) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::DispatchKey::AutocastPrivateUse1);
  const size_t count = op.schema().arguments().size();
  for (size_t index = stack->size() - count; index < stack->size(); ++index) {
    c10::IValue& value = (*stack)[index];
    if (value.isTensor() && value.toTensor().defined()) {
      value = cast(value.toTensor(), type);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list;
      for (const c10::IValue& item : value.toListRef()) list.push_back(cast(item.toTensor(), type));
      value = std::move(list);
    }
  }
  op.callBoxed(stack);
}

void in_lower_precision(const c10::OperatorHandle& op, Stack* stack) {
  call_with(op, stack, at::autocast::get_autocast_dtype(kFake));
}

void in_full_precision(const c10::OperatorHandle& op, Stack* stack) { call_with(op, stack, at::kFloat); }

}  // namespace

}  // namespace fake_torch

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  for (const char* const name :
       {"_convolution", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input", "prelu", "addmm",
        "addmv", "matmul", "mm", "mv", "linear", "addbmm", "baddbmm", "bmm", "scaled_dot_product_attention"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fake_torch::in_lower_precision>());
  }
  for (const char* const name : {"exp",
                                 "log",
                                 "pow.Tensor_Scalar",
                                 "rsqrt",
                                 "softplus",
                                 "layer_norm",
                                 "group_norm",
                                 "nll_loss",
                                 "nll_loss_nd",
                                 "l1_loss",
                                 "smooth_l1_loss",
                                 "mse_loss",
                                 "binary_cross_entropy_with_logits",
                                 "cross_entropy_loss",
                                 "softmax.int",
                                 "log_softmax.int",
                                 "cumsum",
                                 "prod",
                                 "sum",
                                 "sum.dim_IntList",
                                 "norm.Scalar"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&fake_torch::in_full_precision>());
  }
}
