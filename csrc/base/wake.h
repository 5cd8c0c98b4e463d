// How a rank wakes another that sleeps until something in shared memory changes.
//
// The sleeper sets a word, looks once more, and sleeps on the word. The waker makes its change, then looks at the
// word. Sequentially consistent fences on both sides (Dekker) make sure that one of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace ddl {

// Sequentially consistent ordering between an earlier store and a later load. This is a read-modify-write, because
// ThreadSanitizer does not understand fences. On x86 both are one locked instruction.
inline void full_fence(std::atomic<uint32_t>* any_word) { any_word->fetch_add(0, std::memory_order_seq_cst); }

// Call after the change. `fence_word` is any word that belongs to the caller.
inline void wake_if_sleeping(std::atomic<uint32_t>* sleeping) {
  if (sleeping->load(std::memory_order_seq_cst) == 0) return;
  sleeping->store(0, std::memory_order_seq_cst);
  futex_wake(sleeping);
}

}  // namespace ddl
