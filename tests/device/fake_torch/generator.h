// Random numbers of the device: those of a generator of the CPU, which the fallback hands to the CPU's kernels.
#pragma once

#include <ATen/core/Generator.h>

namespace fake_torch {

const at::Generator& default_generator(int device);
at::Generator new_generator(int device);
// The CPU's generator in a generator of the device; in the device's default one if there is none.
at::Generator generator_for_cpu(const at::Generator& generator, int device);

}  // namespace fake_torch
