// How the kernel's scheduler is to treat a thread.
#pragma once

namespace ddl {

// Asks for short turns on the processor for the calling thread, which works for microseconds at a time. The kernel
// then runs it soon after it wakes. Otherwise it may wait some milliseconds, until a computation's turn ends. Its
// share of the processor stays the same, and it needs no privilege. Linux 6.12 and later; no effect elsewhere.
void ask_for_short_turns();

// Asks for naps of the calling thread that end when they should. Otherwise the kernel may let each last 50 us longer.
void ask_for_exact_naps();

}  // namespace ddl
