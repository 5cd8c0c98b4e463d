// memcpy with two properties that the C library's lacks: a choice of where the bytes go, and no bad days. (Libraries
// prefer `rep movsb`, which crawls on some processors where the addresses differ by little more than a multiple of
// 4 KiB: 6 GB/s instead of 30 were seen.)
#pragma once

#include <cstddef>

namespace ddl {

// Streaming stores go past the caches. Lines that another core has in its cache are written several times faster so
// than through one's own, but whoever reads them next must fetch them from memory.
enum class Stores { kCached, kStreaming };

// As memcpy; both kinds of stores are ordered before those that follow. Safe from any thread, throws nothing.
void copy(void* to, const void* from, std::size_t bytes, Stores stores = Stores::kCached);

}  // namespace ddl
