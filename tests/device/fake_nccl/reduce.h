// NCCL's types and operators, on plain memory.
#pragma once

#include <cstddef>
#include <vector>

#include "abi.h"

namespace fake_nccl {

size_t size_of(Type type);

// Combines `count` elements of each input, in the inputs' order. 16-bit floats are rounded once, in the end. An
// average of integers is their sum, which may wrap, divided towards zero.
void reduce(Type type, Operator op, const std::vector<const char*>& inputs, size_t count, char* result);

}  // namespace fake_nccl
