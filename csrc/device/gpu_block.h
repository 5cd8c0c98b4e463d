// Memory of a GPU that DDL itself allocates: for measurements, and for results of frameworks whose arrays are
// immutable (JAX). What users pass is allocated by their framework.
//
// Memory is given back to the driver each time, and not kept for the next result: a framework drops its array while
// its own streams, which DDL does not know, may still read it. Only the driver waits for them, in cuMemFree.
#pragma once

#include <cstdint>
#include <memory>

#include "device/gpu.h"

namespace ddl {

class GpuBlock {
 public:
  // Throws DriverError, which names the GPU.
  GpuBlock(int device, uint64_t bytes);
  ~GpuBlock();
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;

  int device() const { return gpu_->device(); }
  DevicePointer address() const { return memory_; }
  uint64_t bytes() const { return bytes_; }
  // Both return when the copy has ended. Throw kResourceError if the GPU fails, or does not answer.
  void write(const char* from);
  void read(char* to);

 private:
  template <typename Queue>
  void copy(Queue queue);
  char* staging();

  const std::shared_ptr<Gpu> gpu_;
  const Driver& driver_;
  const uint64_t bytes_;
  DevicePointer memory_ = 0;
  // From the first `write` or `read` on: a result of a collective needs none of them.
  char* staging_ = nullptr;
  StreamHandle stream_ = nullptr;
  EventHandle end_ = nullptr;
};

}  // namespace ddl
