#include "mpi/errors.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <string>

#include "mpi/names.h"
#include "mpi/values.h"

namespace ddl {
namespace mpi {
namespace {

thread_local std::string why;  // the last function failed

}  // namespace

int fail(const std::string& text) {
  why = text;
  return kFailed;
}

int fail_call(const std::string& text) {
  static std::atomic<bool> written{false};
  if (!written.exchange(true)) std::fprintf(stderr, "ddl: %s\n", text.c_str());
  return fail(text);
}

extern "C" {

DDL_MPI_EXPORT int MPIABI_Error_string(int, char* text, int* length) {
  const size_t room = std::min(why.size(), kTextRoom - 1);
  std::memcpy(text, why.data(), room);
  text[room] = 0;
  *length = static_cast<int>(room);
  return kSuccess;
}

#define DDL_MPI_FAILING(name) \
  DDL_MPI_EXPORT int MPIABI_##name() { return fail("MPI_" #name ": DDL offers what JAX calls, and not this"); }
DDL_MPI_UNUSED_FUNCTIONS(DDL_MPI_FAILING)

}  // extern "C"

}  // namespace mpi
}  // namespace ddl
