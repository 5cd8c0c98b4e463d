// The GPUs of this machine, and how fast copies to and from them are: for `ddl doctor`.
//
// It measures what a transfer does: copies of pieces between a GPU and a slab of the arena, on streams like those of
// Gpu, and words that a stream writes. Every wait for the GPU has a deadline; a driver call that never returns has
// none. So a caller that must not hang runs this in a process that it can kill. For one thread at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "device/driver.h"

namespace ddl {

// Whether there is a driver that can be used; loads it.
struct DriverState {
  int version = 0;  // as Driver::version
  int count = 0;    // of GPUs
  std::string problem;
  bool missing = false;  // there is no such library
};
DriverState survey_driver();

struct MeasurementLimits {
  uint64_t piece_bytes;  // of each copy
  Nanoseconds sample;    // how long copies go on, for each of the three figures
  Nanoseconds patience;  // with a GPU on which nothing ends
};

struct MeasuredGpu {
  // Bytes per second: one direction alone, then both at once.
  double down = 0, up = 0, both_down = 0, both_up = 0;
  double registering = 0;     // bytes per second; 0: the driver refuses it
  std::string refusal;        // why
  std::string words_problem;  // why streams cannot write words; "": they can
};
// Throws DriverError, and Error (kResourceError) if the GPU does not answer. Both name the GPU. What a GPU that has
// failed may still use is never given back.
MeasuredGpu measure_gpu(int device, const MeasurementLimits& limits);
// What the driver says of the GPU. Throws as `measure_gpu`.
DeviceDescription describe_gpu(int device);

}  // namespace ddl
