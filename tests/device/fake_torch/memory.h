// Memory of the device, pinned memory of the host, and the host memory through which this device copies.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <cstdint>

namespace fake_torch {

// As torch's CUDA allocator: memory belongs to the stream that was current when it was allocated. When it is freed,
// the next allocation of its size on that stream gets it at once, without any wait: who still copies on another
// stream copies what is no longer there.
c10::Allocator* device_allocator();
// Host memory that is registered: copies without blocking happen right there, when their streams come to them.
c10::Allocator* pinned_allocator();
// The memory (of the device or pinned) is used by the stream too: it is not given again before that use has ended.
void record_use(const c10::DataPtr& data, const c10::Stream& stream);
bool is_pinned(const void* pointer);

// Registered memory for one copy: a word, with which the stream says that it has come so far, and the data.
//
// Each stream has its own, and uses a piece again in its own order. So the ledger needs no clock of the host, and the
// host learns nothing from having seen the word: on a GPU, too, who launches a kernel does not know when it ends.
class Staging {
 public:
  Staging(const c10::Stream& stream, size_t bytes);
  ~Staging();  // gives the piece back; it is used again when its stream has reached the last mark
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;

  char* data() const;
  void mark();        // the stream says so when it comes here
  void wait() const;  // the host waits for the last mark

  struct Piece;

 private:
  const c10::Stream stream_;
  Piece* piece_;
};

void forget_memory();

}  // namespace fake_torch
