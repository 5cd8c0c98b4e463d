// Integers of less than 64 bits as int64, and back: for averages, whose sum may be more than the type holds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "reduce/dtype.h"

namespace ddl {

// Whether it is a type of such integers.
bool is_narrow(DType dtype);

// `to` = `from`, which has `count` elements of such a type.
void widen(std::int64_t* to, const void* from, DType dtype, std::size_t count);
// The way back. What does not fit is cut off.
void narrow(void* to, const std::int64_t* from, DType dtype, std::size_t count);

}  // namespace ddl
