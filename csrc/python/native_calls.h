// Calls of a communicator for libraries in this process that are no Python: what a framework loads, say. Plain C, so
// that they need neither this project's other headers nor its compiler. `ddl._core.NATIVE_CALLS` is the address of
// the one table, and `Communicator.address` that of a communicator (ddl/adapter/native.py).
//
// No caller needs the interpreter lock, and none may wait for somebody who does: a call takes the lock where Python
// has to plan (once for each collective and root), and never while it waits. As everywhere, one thread at a time
// submits to a communicator, all ranks in the same order. Somebody keeps the communicator alive meanwhile.
#pragma once

#include <stddef.h>
#include <stdint.h>

extern "C" {

struct DdlNativeCall {
  int32_t collective;  // a ddl::Collective: no all-to-all, gather or scatter of different lengths
  int32_t op;          // a ddl::ReduceOp
  int32_t dtype;       // a ddl::DType
  int32_t root;        // the root, or the other rank of a message
  const void* input;   // null: none
  void* output;        // null: none
  uint64_t count;      // elements of the input; of the output, if there is no input
  uint64_t part;       // elements of each rank's block; 0: the buffers have none
};

// A function that returns 0 has done what it should. Otherwise it has written why to `text`, which has room for
// `room` bytes, and 0 at the end.
struct DdlNativeCalls {
  // Makes a call and waits for its end.
  int (*run)(void* communicator, const struct DdlNativeCall* call, char* text, size_t room);
  // Makes a call, and sets `*work` to what goes on. `wait` must be called for it.
  int (*start)(void* communicator, const struct DdlNativeCall* call, void** work, char* text, size_t room);
  // Waits for the end of `work`, which is gone then.
  int (*wait)(void* communicator, void* work, char* text, size_t room);
};

}  // extern "C"
