// Pages of memory, made before they are used.
#pragma once

#include <cstddef>

namespace ddl {

// Lets pages of the arena be there, by several threads at once where there are cores: to touch new ones takes 0.4 ms
// for each MiB. `base` and `bytes` are whole pages. Throws kResourceError if the kernel has no memory for them.
void make_pages(char* base, size_t bytes);

}  // namespace ddl
