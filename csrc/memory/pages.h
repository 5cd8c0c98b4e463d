// Makes the kernel provide pages of memory before they are used.
#pragma once

#include <cstddef>

namespace ddl {

// Populates pages of the arena, with several threads where there are cores: touching new pages takes 0.4 ms per MiB.
// `base` and `bytes` are whole pages. Throws kResourceError if the kernel has no memory for them.
void make_pages(char* base, size_t bytes);

}  // namespace ddl
