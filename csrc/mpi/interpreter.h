// What is asked of the Python in whose process this library is: to join the job, and to make communicators. Any
// thread may ask, with or without the interpreter lock. Errors are thrown as std::runtime_error, with Python's text.
#pragma once

#include "python/native_calls.h"

namespace ddl {
namespace mpi {

// A communicator as ddl_jax/_groups.py returns it.
struct Group {
  void* native = nullptr;
  int rank = 0;
  int size = 1;
};

// Joins the job, if this process is not in it; sets the world and the core's calls. Collective.
Group begin(const DdlNativeCalls** calls);
// Collective over all ranks. A null `native`: this rank is in no group.
Group split(int color, int key, bool in_a_group);
// Python may let go of it.
void forget(const Group& group);

}  // namespace mpi
}  // namespace ddl
