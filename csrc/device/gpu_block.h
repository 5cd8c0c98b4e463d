// Memory of a GPU that DDL itself allocates, for measurements: what users pass is allocated by their framework.
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

  DevicePointer address() const { return memory_; }
  uint64_t bytes() const { return bytes_; }
  // Both return when the copy has ended. Throw kResourceError if the GPU fails, or does not answer.
  void write(const char* from);
  void read(char* to);

 private:
  template <typename Queue>
  void copy(Queue queue);

  const std::shared_ptr<Gpu> gpu_;
  const Driver& driver_;
  const uint64_t bytes_;
  DevicePointer memory_ = 0;
  char* staging_ = nullptr;
  StreamHandle stream_ = nullptr;
  EventHandle end_ = nullptr;
};

}  // namespace ddl
