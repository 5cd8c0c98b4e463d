// The operations that are more than arithmetic: they make tensors, look at the same memory in another way, or copy.
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <optional>

#include "copies.h"
#include "memory.h"
#include "streams.h"

namespace fake_torch {

namespace {

using Dtype = std::optional<at::ScalarType>;
using MaybeLayout = std::optional<at::Layout>;
using MaybeDevice = std::optional<at::Device>;

const c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

c10::Device device_or_current(const MaybeDevice& device) {
  const bool given = device.has_value() && device->has_index();
  return {kFake, static_cast<c10::DeviceIndex>(given ? device->index() : current_device())};
}

at::Tensor empty(at::IntArrayRef sizes, Dtype dtype, MaybeLayout, MaybeDevice device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(sizes, device_allocator(), kKeys, c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, MaybeLayout, MaybeDevice device,
                         std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(sizes, strides, device_allocator(), kKeys, c10::dtype_or_default(dtype));
}

// The storage's new memory belongs to the current stream; the former content comes along.
void grow(const c10::Storage& storage, size_t bytes) {
  if (bytes <= storage.nbytes()) return;
  TORCH_CHECK(storage.resizable(), "the storage cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_allocator()->allocate(bytes);
  copy_bytes(storage.data(), data.get(), storage.nbytes(), current_stream(storage.device().index()));
  storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(data));
  storage.unsafeGetStorageImpl()->set_nbytes(bytes);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  if (format.has_value() && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const size_t item = self.dtype().itemsize();
  grow(self.storage(), at::detail::computeStorageNbytes(self.sizes(), self.strides(), item, self.storage_offset()));
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage storage, int64_t offset, at::IntArrayRef sizes,
                        at::IntArrayRef strides) {
  c10::TensorImpl* const impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(storage);
  if (strides.data() == nullptr || (strides.empty() && !sizes.empty())) {
    impl->set_storage_offset(offset);
    impl->set_sizes_contiguous(sizes);
  } else {
    impl->set_sizes_and_strides(sizes, strides, offset);
  }
  const size_t item = self.dtype().itemsize();
  if (self.numel() > 0) {
    grow(storage, at::detail::computeStorageNbytes(self.sizes(), self.strides(), item, self.storage_offset()));
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage storage) {
  const auto elements = static_cast<int64_t>(storage.nbytes() / self.dtype().itemsize());
  return set_storage(self, std::move(storage), 0, {elements}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_nothing(at::Tensor& self) {
  const c10::DeviceGuard guard(self.device());
  const at::Tensor none = at::detail::empty_generic({0}, device_allocator(), kKeys, self.scalar_type(), std::nullopt);
  return set_tensor(self, none);
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  copy_tensor(self, dst, non_blocking);
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  if (self.sizes() != dst.sizes()) dst.resize_(self.sizes());
  copy_tensor(self, dst, false);
  return dst;
}

at::Scalar item(const at::Tensor& self) {
  const at::Tensor value = at::empty({}, self.options().device(at::kCPU));
  copy_tensor(self, value, false);
  return value.item();
}

at::Tensor& fill(at::Tensor& self, const at::Scalar& value) {
  const auto options = at::TensorOptions().dtype(self.scalar_type());
  upload(at::full({}, value, options), self, stream_for(self));
  return self;
}

at::Tensor& zero(at::Tensor& self) { return fill(self, 0); }

void record_stream(at::Tensor& self, c10::Stream stream) { record_use(self.storage().data_ptr(), stream); }

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides,
                      std::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

// Scaled dot products are those of matrices: none of the fused kernels is there.
int64_t no_fused_attention(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&,
                           double, bool, std::optional<double>, bool) {
  return 0;
}

}  // namespace

}  // namespace fake_torch

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  using namespace fake_torch;
  m.impl("empty.memory_format", TORCH_FN(empty));
  m.impl("empty_strided", TORCH_FN(empty_strided));
  m.impl("as_strided", TORCH_FN(as_strided));
  m.impl("view", TORCH_FN(at::native::view));
  m.impl("_reshape_alias", TORCH_FN(at::native::_reshape_alias));
  m.impl("unfold", TORCH_FN(at::native::unfold));
  m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
  m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
  m.impl("resize_", TORCH_FN(resize));
  m.impl("set_", TORCH_FN(set_nothing));
  m.impl("set_.source_Storage", TORCH_FN(set_whole_storage));
  m.impl("set_.source_Storage_storage_offset", TORCH_FN(set_storage));
  m.impl("set_.source_Tensor", TORCH_FN(set_tensor));
  m.impl("_copy_from", TORCH_FN(copy_from));
  m.impl("_copy_from_and_resize", TORCH_FN(copy_from_and_resize));
  m.impl("_local_scalar_dense", TORCH_FN(item));
  m.impl("fill_.Scalar", TORCH_FN(fill));
  m.impl("zero_", TORCH_FN(zero));
  m.impl("record_stream", TORCH_FN(record_stream));
  m.impl("_fused_sdp_choice", TORCH_FN(no_fused_attention));
}

// Copies themselves see to conjugate and negative views.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
