// Checks what comes from Python into the engine: numbers that name something, buffers that must exist, and lengths
// that must fit them. The engine trusts all of it afterwards, so a wrong index is refused here. All of these throw
// kInvalidArgument.
#pragma once

#include "python/handle.h"

namespace ddl {

// Numbers as Python gives them: of ddl.plan.ir.Collective, of a reduction operator, and of seconds above 0.
Collective collective_from(long number);
ReduceOp reduce_op_from(long number);
Nanoseconds nanoseconds_from(double seconds, const char* what);

// The root, or the other rank of send and recv.
void check_root(const Call& call, int rank, int size);
// The buffers that `rank` must give to this call.
void check_given(const Call& call, bool input, bool output, int rank);
// Whether the lengths of blocks fit the buffers' elements. Null: there is no such buffer.
void check_lengths(const Call& call, const Memory* input, const Memory* output, int rank, int size);

}  // namespace ddl
