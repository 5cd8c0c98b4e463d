// How a rank that sleeps in shared memory is woken by a rank that has just changed something it waits for.
//
// The sleeper raises the word, looks once more, and sleeps on it; the waker changes what is waited for, then looks at
// the word. The sequentially consistent fences on both sides (Dekker) make sure that one of the two sees the other.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/futex.h"

namespace ddl {

// Sequentially consistent ordering between an earlier store and a later load. ThreadSanitizer does not know fences,
// so this is a read-modify-write, which it does; on x86 both are one locked instruction.
inline void full_fence(std::atomic<uint32_t>* any_word) { any_word->fetch_add(0, std::memory_order_seq_cst); }

// Call after the change. `fence_word` is any word of the caller's own.
inline void wake_if_sleeping(std::atomic<uint32_t>* sleeping) {
  if (sleeping->load(std::memory_order_seq_cst) == 0) return;
  sleeping->store(0, std::memory_order_seq_cst);
  futex_wake(sleeping);
}

}  // namespace ddl
