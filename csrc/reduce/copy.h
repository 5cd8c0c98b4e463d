// memcpy with two properties that the C library's does not have: a choice whether to write past the caches, and the
// same speed for all addresses. (Libraries prefer `rep movsb`. On some processors it is slow where the two addresses
// differ by little more than a multiple of 4 KiB: 6 GB/s instead of 30 were seen.)
#pragma once

#include <cstddef>

namespace ddl {

// Streaming stores go past the caches. Lines that another core has in its cache are written several times faster in
// this way, but the next reader must fetch them from memory.
enum class Stores { kCached, kStreaming };

// As memcpy. Both kinds of stores are ordered before later stores. Safe from any thread, throws nothing. Helpers take
// parts where there are some (base/helpers.h).
void copy(void* to, const void* from, std::size_t bytes, Stores stores = Stores::kCached);

}  // namespace ddl
