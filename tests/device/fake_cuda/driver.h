// The fake driver: a stand-in for libcuda.so.1 that has no GPU, and knows what every call should have waited for.
//
// One object holds everything, under one lock (`mutex`). Calls of the driver also take `api` first, as the real
// driver has a lock of its own: a call that waits for the device under it keeps all others out (option "free_waits").
// Hooks, control calls and the threads that run commands take `mutex` only. The object is never destroyed: at the end
// of the process, threads of others may still call. A forked child has none: see process.cc.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "abi.h"
#include "command.h"
#include "ledger.h"
#include "objects.h"

namespace fake {

struct Settings {
  uint64_t seed = 1;
  bool steps = false;  // the test runs commands; otherwise threads do
  int queues = 8;      // of the hardware, for all streams of a device; 0: each stream has one
  int devices = 1;
  bool strict = true;  // a copy from or to pageable memory is an error
};

class Driver {
 public:
  // The driver of this process; null in a child whose parent used it before it forked.
  static Driver* usable();
  // As `usable`, but a forked child gets a driver of its own.
  static Driver& anew();
  static bool exited();

  explicit Driver(const Settings& settings);
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // Everything is as new. Ends the threads first. The caller holds nothing.
  void reset(const Settings& settings);

  // --- with `mutex` held ---

  Thread& thread();
  std::shared_ptr<Stream> add_stream(const std::shared_ptr<Context>& context, bool blocking, const std::string& name);
  void complain(const std::string& text) { ledger.complain(text); }

  // Memory (memory.cc).
  std::shared_ptr<Allocation> allocation_of(DevicePointer pointer) const;  // freed ones, too
  std::shared_ptr<Registration> registration_of(uintptr_t host) const;
  Place place_of(DevicePointer pointer, size_t bytes) const;
  // Where the host has registered memory that the device knows by this address.
  uintptr_t host_of(DevicePointer address) const;
  std::string name_of(uintptr_t address) const;
  void unmap_all();
  // Says what is wrong with the memory of a command that is about to run. False: it must not be touched.
  bool still_there(const Command& command, const Allocation* allocation, const Registration* registration,
                   Range host);
  // Checks and keeps an access of a stream's command, or of a host thread.
  void note(const Command& command, Range range, AccessKind kind);
  void note(Thread& thread, const char* who, Range range, AccessKind kind);

  // Order and execution (scheduler.cc, runners.cc).
  int enqueue(Thread& thread, const std::shared_ptr<Stream>& stream, std::shared_ptr<Command> command);
  bool done(const Stream& stream, Clock* clock) const;
  std::shared_ptr<Command> pick();  // one of the heads that can be run, by the seed; it is running then
  void begin(const std::shared_ptr<Command>& command);
  void finish(const std::shared_ptr<Command>& command);
  bool step(std::unique_lock<std::mutex>* lock);
  void start_threads();
  void settle();
  // Waits, and runs commands meanwhile if nobody else does.
  int wait_until(std::unique_lock<std::mutex>* lock, const std::function<bool()>& over);
  // The same, for a command (or, if it is null, for all commands).
  int wait_for(std::unique_lock<std::mutex>* lock, const Command* command);
  // Whether the queue of a stream takes another command now.
  bool has_room(const Stream& stream) const;
  // Whether that queue stands still now: for a word, or because the test has paused everything.
  bool held_up(const Stream& stream) const;
  size_t pending() const;
  uint64_t draw(uint64_t bound);
  int64_t option(const char* name, int64_t otherwise) const;
  bool is_away() const;

  // Captures (capture.cc). What may not be called while another thread captures: 0, or the error.
  int unsafe_call(const Thread& thread);
  int capture_of_legacy(const Stream& stream);

  std::mutex api, mutex;
  std::condition_variable changed;

  Settings settings;
  std::map<std::string, int64_t> options;
  const int pid;
  std::atomic<bool> initialised{false};
  uint64_t generation = 0;  // of what `reset` makes new
  int failed = 0;           // the sticky error of the device
  int fail_code = 0;        // what it will be
  int64_t fail_after = -1;  // commands from now on; -1: never

  std::map<std::string, uint64_t> calls;
  struct Refusal {
    int code;
    int64_t count;
  };
  std::map<std::string, Refusal> refusals;

  Ledger ledger;
  std::vector<std::unique_ptr<Thread>> threads;
  std::map<int, std::shared_ptr<Context>> primary;  // by device
  std::vector<std::shared_ptr<Context>> contexts;
  std::map<void*, std::shared_ptr<Stream>> streams;  // those that were created and not destroyed
  std::vector<std::shared_ptr<Stream>> all_streams;  // also those: what they did stays ordered
  std::map<void*, std::shared_ptr<Event>> events;
  std::map<uintptr_t, std::shared_ptr<Allocation>> allocations;      // by their begin; freed ones, too
  std::map<uintptr_t, std::shared_ptr<Registration>> registrations;  // by their begin
  std::vector<std::shared_ptr<Capture>> captures;
  uintptr_t region = 0, region_used = 0;  // of addresses for device memory
  uint64_t numbers = 0, commands = 0;

  std::map<uint64_t, std::deque<std::shared_ptr<Command>>> queues;  // of the hardware, by device and number
  std::deque<std::shared_ptr<Command>> functions;                   // for the thread that runs host functions
  size_t running = 0, in_functions = 0;                             // the latter are among the former
  std::set<std::pair<int, int>> engines;                            // at work: device, and number
  bool paused = false, stopping = false, polling = false;
  size_t blocked = 0;      // callers that wait in here
  size_t full_queues = 0;  // calls that have met a full queue that stood still
  uint64_t random = 0;

 private:
  void run_commands();
  void run_functions();

  std::vector<std::thread> runners_;
};

// A call of the driver by a thread of the host: what every entry point begins with. `ended`: it returns `code` at
// once.
class Call {
 public:
  enum class Needs { kNothing, kDriver, kContext };

  Call(const char* entry, Needs needs);
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // A stream or an event by its handle; null, with `code` and a violation, if there is no such thing.
  std::shared_ptr<Stream> stream(void* handle);
  std::shared_ptr<Event> event(void* handle);
  // Blocks the caller while the stream's queue is full; other calls go on meanwhile.
  int enqueue(const std::shared_ptr<Stream>& stream, std::shared_ptr<Command> command);
  // Blocks the caller. Only if `holds_driver`, other calls wait, too.
  int wait_for(const Command* command, bool holds_driver);
  // Until no command touches memory at this moment. Others can be run afterwards.
  void wait_until_still();

  const char* const entry;
  int code = kSuccess;
  bool ended = true;  // a call that is refused may have to say that it has worked
  Driver* driver = nullptr;
  Thread* thread = nullptr;
  std::shared_ptr<Context> context;

 private:
  int missing(Needs needs) const;

  std::unique_lock<std::mutex> api_, lock_;
};

// Set in the thread that runs host functions: it may not call the driver.
extern thread_local bool runs_host_functions;

}  // namespace fake
