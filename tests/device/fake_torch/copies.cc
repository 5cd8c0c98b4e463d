#include "copies.h"

#include <ATen/core/TensorBody.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "driver.h"

namespace fake_torch {

namespace {

uint64_t address_of(const at::Tensor& tensor) { return reinterpret_cast<uint64_t>(tensor.const_data_ptr()); }

void refuse_capture(const c10::Stream& stream) {
  int status = 0;
  FAKE_CALL(cuStreamIsCapturing, handle_of(stream), &status);
  TORCH_CHECK(status == 0, "the fake device captures no operation of torch in a graph");
}

void order(const c10::Stream& before, const c10::Stream& after) {
  void* event = nullptr;
  {
    const Pushed pushed(before.device_index());
    FAKE_CALL(cuEventCreate, &event, 2);
    FAKE_CALL(cuEventRecord, event, handle_of(before));
  }
  const Pushed pushed(after.device_index());
  FAKE_CALL(cuStreamWaitEvent, handle_of(after), event, 0);
  FAKE_CALL(cuEventDestroy_v2, event);
}

at::Tensor view_of(char* memory, const at::Tensor& like) {
  at::Tensor view = at::from_blob(memory, like.sizes(), like.strides(), like.options().device(at::kCPU));
  view._set_conj(like.is_conj());
  view._set_neg(like.is_neg());
  return view;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.is_conj() == b.is_conj() && a.is_neg() == b.is_neg();
}

// Whether the bytes of one are those of the other, in the same order and without gaps.
bool same_dense(const at::Tensor& a, const at::Tensor& b) {
  return same_bits(a, b) && a.sizes() == b.sizes() && a.strides() == b.strides() && a.is_non_overlapping_and_dense();
}

void copy_on_device(const at::Tensor& src, const at::Tensor& dst) {
  const c10::Stream from = stream_for(src), to = stream_for(dst);
  const bool across = from.device_index() != to.device_index();
  if (across) order(to, from);  // as torch: the source's stream also waits for what the target's has
  if (same_dense(src, dst)) {
    const size_t bytes = src.nbytes();
    Staging staging(to, bytes);
    {
      const Pushed pushed(from.device_index());
      refuse_capture(from);
      FAKE_CALL(cuMemcpyDtoHAsync_v2, staging.data(), address_of(src), bytes, handle_of(from));
    }
    if (across) order(from, to);
    const Pushed pushed(to.device_index());
    FAKE_CALL(cuMemcpyHtoDAsync_v2, address_of(dst), staging.data(), bytes, handle_of(to));
    staging.mark();
    return;
  }
  const at::Tensor values = Download(src, from).wait();
  if (across) order(from, to);
  upload(values, dst, to);
}

void copy_up(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  const c10::Stream stream = stream_for(dst);
  const bool whole = same_dense(src, dst);
  if (non_blocking && whole && is_pinned(src.const_data_ptr())) {
    const Pushed pushed(stream.device_index());
    refuse_capture(stream);
    FAKE_CALL(cuMemcpyHtoDAsync_v2, address_of(dst), src.const_data_ptr(), src.nbytes(), handle_of(stream));
    record_use(src.storage().data_ptr(), stream);
    return;
  }
  upload(src, dst, stream);
  if (!non_blocking) synchronize(stream);
}

void copy_down(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  const c10::Stream stream = stream_for(src);
  if (non_blocking && same_dense(src, dst) && is_pinned(dst.const_data_ptr())) {
    const Pushed pushed(stream.device_index());
    refuse_capture(stream);
    FAKE_CALL(cuMemcpyDtoHAsync_v2, dst.mutable_data_ptr(), address_of(src), src.nbytes(), handle_of(stream));
    record_use(dst.storage().data_ptr(), stream);
    return;
  }
  dst.copy_(Download(src, stream).wait());
  synchronize(stream);  // for the ledger: this thread knows now
}

}  // namespace

Layout::Layout(const at::Tensor& tensor) {
  if (tensor.numel() == 0) return;
  std::vector<std::pair<int64_t, int64_t>> dimensions;  // stride and size
  int64_t last = 0;
  for (int64_t d = 0; d < tensor.dim(); ++d) {
    last += (tensor.size(d) - 1) * tensor.stride(d);
    if (tensor.size(d) > 1 && tensor.stride(d) != 0) dimensions.emplace_back(tensor.stride(d), tensor.size(d));
  }
  const auto item = static_cast<size_t>(tensor.element_size());
  span = (static_cast<size_t>(last) + 1) * item;
  std::sort(dimensions.begin(), dimensions.end());
  int64_t elements = 1;
  auto outer = dimensions.begin();
  for (; outer != dimensions.end() && outer->first == elements; ++outer) elements *= outer->second;
  run = static_cast<size_t>(elements) * item;
  begins = {0};
  for (; outer != dimensions.end(); ++outer) {
    const size_t known = begins.size();
    for (int64_t index = 1; index < outer->second; ++index) {
      for (size_t place = 0; place < known; ++place) {
        begins.push_back(begins[place] + static_cast<size_t>(index * outer->first) * item);
      }
    }
  }
}

Download::Download(const at::Tensor& tensor, const c10::Stream& stream) : tensor_(tensor), stream_(stream) {
  const Layout layout(tensor);
  span_ = layout.span;
  if (span_ == 0) return;
  const Pushed pushed(stream.device_index());
  refuse_capture(stream);
  staging_ = std::make_unique<Staging>(stream, span_);
  for (const size_t begin : layout.begins) {
    FAKE_CALL(cuMemcpyDtoHAsync_v2, staging_->data() + begin, address_of(tensor) + begin, layout.run,
              handle_of(stream));
  }
  staging_->mark();
}

at::Tensor Download::wait() {
  at::Tensor values =
      at::empty_strided(tensor_.sizes(), tensor_.strides(), tensor_.options().device(at::kCPU).pinned_memory(false));
  values._set_conj(tensor_.is_conj());
  values._set_neg(tensor_.is_neg());
  if (span_ > 0) {
    const Pushed pushed(stream_.device_index());
    staging_->wait();
    std::memcpy(values.mutable_data_ptr(), staging_->data(), span_);
  }
  return values;
}

void upload(const at::Tensor& values, const at::Tensor& tensor, const c10::Stream& stream) {
  const Layout layout(tensor);
  if (layout.span == 0) return;
  const Pushed pushed(stream.device_index());
  refuse_capture(stream);
  Staging staging(stream, layout.span);
  view_of(staging.data(), tensor).copy_(values);
  for (const size_t begin : layout.begins) {
    FAKE_CALL(cuMemcpyHtoDAsync_v2, address_of(tensor) + begin, staging.data() + begin, layout.run,
              handle_of(stream));
  }
  staging.mark();
}

void copy_bytes(const void* from, void* to, size_t bytes, const c10::Stream& stream) {
  if (bytes == 0) return;
  const Pushed pushed(stream.device_index());
  Staging staging(stream, bytes);
  FAKE_CALL(cuMemcpyDtoHAsync_v2, staging.data(), reinterpret_cast<uint64_t>(from), bytes, handle_of(stream));
  FAKE_CALL(cuMemcpyHtoDAsync_v2, reinterpret_cast<uint64_t>(to), staging.data(), bytes, handle_of(stream));
  staging.mark();
}

void copy_tensor(const at::Tensor& src, const at::Tensor& dst, bool non_blocking) {
  if (dst.numel() == 0) return;
  if (src.device().type() == kFake && dst.device().type() == kFake) {
    copy_on_device(src, dst);
  } else if (dst.device().type() == kFake) {
    copy_up(src, dst, non_blocking);
  } else {
    copy_down(src, dst, non_blocking);
  }
}

}  // namespace fake_torch
