// How the kernel's scheduler is to treat a thread.
#pragma once

namespace ddl {

// Asks for short turns on the processor for the calling thread, which works for microseconds at a time: the kernel
// then lets it run soon after it wakes, where else it waits for the end of a computation's turn of some milliseconds.
// Its share of the processor stays the same and no privilege is needed. Linux 6.12 and later; without effect
// elsewhere.
void ask_for_short_turns();

}  // namespace ddl
