// Tensors go between the device and the host: each copy is queued on a stream, from or to registered memory.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <memory>
#include <utility>
#include <vector>

#include "memory.h"
#include "streams.h"

namespace fake_torch {

// Where the bytes of a tensor's elements are, from its first element on: runs of the same length. What is between
// them belongs to others, who may write it at the same time.
struct Layout {
  explicit Layout(const at::Tensor& tensor);

  size_t span = 0;  // bytes from the first element to the end of the last one
  size_t run = 0;   // bytes
  std::vector<size_t> begins;
};

// A copy of a tensor's elements on the way down, at the same distances as they have on the device.
class Download {
 public:
  Download(const at::Tensor& tensor, const c10::Stream& stream);  // queues the copies
  at::Tensor wait();  // blocks the host; returns a tensor of the CPU with the same strides

 private:
  const at::Tensor tensor_;
  const c10::Stream stream_;
  std::unique_ptr<Staging> staging_;
  size_t span_ = 0;
};

// Writes the CPU's values to a tensor of the device: when this returns, they are still on their way.
void upload(const at::Tensor& values, const at::Tensor& tensor, const c10::Stream& stream);

// dst.copy_(src), where at least one of them is on the device.
void copy_tensor(const at::Tensor& src, const at::Tensor& dst, bool non_blocking);

// Copies the first bytes of one allocation to another.
void copy_bytes(const void* from, void* to, size_t bytes, const c10::Stream& stream);

inline c10::Stream stream_for(const at::Tensor& tensor) { return current_stream(tensor.device().index()); }

}  // namespace fake_torch
