// What may cross from Python into the engine: numbers that name something, buffers that must be there, and lengths
// that must fit them. The engine trusts all of it afterwards, so whatever it uses as an index is refused here.
// Everything throws kInvalidArgument.
#pragma once

#include "python/handle.h"

namespace ddl {

// Numbers as Python gives them: of ddl.plan.ir.Collective, of a reduction operator, and of seconds above 0.
Collective collective_from(long number);
ReduceOp reduce_op_from(long number);
Nanoseconds nanoseconds_from(double seconds, const char* what);

// Whether a buffer has a block for each rank, whose lengths need not be those of another buffer.
bool in_blocks(Collective collective);

// The root, or the other rank of send and recv.
void check_root(const Call& call, int rank, int size);
// The buffers that `rank` must give to this call.
void check_given(const Call& call, bool input, bool output, int rank);
// The lengths of blocks against the elements of the buffers; a null buffer is none.
void check_lengths(const Call& call, const ArrayView* input, const ArrayView* output, int rank, int size);

}  // namespace ddl
