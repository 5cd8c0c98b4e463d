// What the driver has handles of: contexts, streams, events, memory, and the threads that call it.
//
// Plain data, guarded by the driver's lock. Objects are shared, since work that is queued outlives its stream, its
// event and even its memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "abi.h"
#include "clock.h"
#include "ledger.h"

namespace fake {

class Command;
struct Stream;

struct Context {
  int device;
  void* handle;
  int retained = 0;
  bool alive = true;
  std::shared_ptr<Stream> legacy;
};

// A graph that is being captured: streams that belong to it queue nothing.
struct Capture {
  uint64_t thread;  // the number of the thread that began it
  int mode;
  bool invalidated = false, ended = false;
};

struct Stream {
  uint64_t number;
  void* handle;
  std::shared_ptr<Context> context;
  bool legacy = false;
  bool blocking = true;  // the legacy stream waits for it, and it for the legacy stream
  size_t actor = 0;
  Clock clock;                    // of what has been run
  std::shared_ptr<Command> tail;  // what was queued last
  std::shared_ptr<Capture> capture;
  bool joined = true;  // what it has in the capture comes before something on another stream there
};

struct Event {
  uint64_t number;
  std::shared_ptr<Context> context;
  std::shared_ptr<Command> recorded;  // by the latest record; null: never
  std::shared_ptr<Capture> capture;   // the latest record is a part of a graph
  std::shared_ptr<Stream> stream;     // of that record, then
};

struct Allocation {
  uint64_t number;
  Range range;
  char* alias;  // the same memory, where it can be touched
  std::shared_ptr<Context> context;
  bool freed = false;
  bool pooled = false;  // as stream-ordered memory is: it tells no context
};

struct Registration {
  uint64_t number;
  uintptr_t base;  // as it was given
  size_t bytes;
  Range range;  // whole pages
  std::shared_ptr<Context> context;
  bool ended = false;
};

// A thread of the host, since it first called the driver or a hook.
struct Thread {
  uint64_t number;
  size_t actor = 0;
  Clock clock;
  std::vector<std::shared_ptr<Context>> contexts;  // the last one is current; null entries are legal
  std::vector<std::shared_ptr<Stream>> streams;    // "per thread", one for each context that it used
  int capture_mode = kCaptureGlobal;
};

}  // namespace fake
