// How a function fails: it returns kFailed, and Error_string says why to the thread that it failed in. XLA asks at
// once, and raises the text in the user's program.
#pragma once

#include <cstddef>
#include <string>

namespace ddl {
namespace mpi {

constexpr size_t kTextRoom = 1024;  // of whoever calls Error_string, and of the core's texts

// Keeps the text for Error_string, and returns kFailed.
int fail(const std::string& text);
// The same for a call of the core. JAX's own threads may end the process before the program has shown its exception,
// so the first text of the process is written to stderr at once.
int fail_call(const std::string& text);

}  // namespace mpi
}  // namespace ddl
