// The GPU driver, libcuda.so.1: loaded when the first array on a GPU is passed, never before. No header and no
// library of CUDA is needed to build. Only this file, driver.cc and driver_table.* name CUDA.
//
// Each function makes one call of the driver and throws DriverError (the call, the error's name and number) if that
// fails. Functions on streams and events need a current context: see Current. Thread-safe, as the driver is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/error.h"

namespace ddl {

class DriverError : public Error {
 public:
  // `code`: the driver's number of the error; 0: it is not the driver's.
  DriverError(const std::string& what, int code) : Error(ErrorKind::kResourceError, what), code_(code) {}
  // Whether the GPU has failed, so that only a new process can use it again. Otherwise this call alone was refused.
  bool fatal() const;
  // Whether the same call may work later: memory was short, or a graph was being captured.
  bool passing() const;
  int code() const { return code_; }

 private:
  int code_;
};

// Arrays on a GPU cannot be used in this process.
class DriverUnusable : public Error {
 public:
  // `missing`: there is no such library at all; otherwise it is there and of no use.
  DriverUnusable(const std::string& why, bool missing);
  // The reason alone, without what to do.
  const std::string& why() const { return why_; }
  bool missing() const { return missing_; }

 private:
  std::string why_;
  bool missing_;
};

using DevicePointer = uint64_t;
using StreamHandle = void*;
using EventHandle = void*;
using ContextHandle = void*;

struct DriverTable;

// What the driver says of a GPU. Numbers that it does not know are -1.
struct DeviceDescription {
  std::string name;
  std::string pci_address;  // as 0000:17:00.0; "": not known
  uint64_t memory_bytes = 0;
  int major = -1, minor = -1;  // of what it can compute
  int copy_engines = -1;       // copies that may be under way at once
  int compute_mode = -1;       // 0: any process may use it; 2: none may; 3: one process at a time
  int numa_node = -1;          // of the host's memory that is closest
};

class Driver {
 public:
  // Which library to load; empty: libcuda.so.1. Has an effect before the first use only. `waits_on_gpu`: results are
  // copied up by streams that wait for words, where the driver can do that (see Transfer).
  static void configure(const std::string& library, bool waits_on_gpu);
  static bool waits_on_gpu();
  // Loads the library at the first call. Throws kResourceError if there is none, or none that can be used, and
  // kInvalidState in a forked child.
  static Driver& get();

  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  // The newest version of CUDA that the driver knows: 1000 * major + 10 * minor; 0: not known.
  int version() const;
  // How many GPUs this process sees.
  int count() const;
  DeviceDescription describe(int device) const;
  // Memory of the GPU whose context is current. Freeing it waits for all that is queued there.
  DevicePointer allocate(size_t bytes) const;
  void free(DevicePointer memory) const;

  // The number of the GPU whose memory this is.
  int device_of(DevicePointer pointer) const;
  // The context that torch, CuPy and JAX use, too. It is kept until the process ends.
  ContextHandle context_of(int device) const;

  // Makes a context the thread's own for as long as it lives; then the thread has the one that it had before.
  class Current {
   public:
    Current(const Driver& driver, ContextHandle context);
    ~Current();
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
  };

  // A stream that does not wait for the legacy stream, nor the other way round.
  StreamHandle make_stream() const;
  void destroy_stream(StreamHandle stream) const;
  // Whether a graph is being captured on the stream.
  bool capturing(StreamHandle stream) const;
  // Whether all that the stream has queued has ended. This is the query that a failed GPU always answers with its
  // error. The stream is not being captured.
  bool idle(StreamHandle stream) const;
  // From now on, what this thread asks does not spoil a capture in another thread.
  void leave_captures_alone() const;

  EventHandle make_event() const;
  void destroy_event(EventHandle event) const;
  void record(EventHandle event, StreamHandle stream) const;
  // What comes later on the stream waits for what the event has recorded until now. The host does not.
  void wait(StreamHandle stream, EventHandle event) const;
  // Whether all that the event has recorded has ended.
  bool ended(EventHandle event) const;

  // Queued on the stream. The host memory should be registered: otherwise the call may block.
  void copy_down(void* host, DevicePointer device, size_t bytes, StreamHandle stream) const;
  void copy_up(DevicePointer device, const void* host, size_t bytes, StreamHandle stream) const;

  // Lets the GPUs read and write whole pages of host memory directly.
  void register_memory(void* host, size_t bytes) const;
  // The address by which GPUs know a place in registered memory.
  DevicePointer address_of(void* host) const;

  // Whether streams can write words of registered memory; an older driver cannot.
  bool has_words() const;
  // Queued on the stream: whoever sees the value at the address sees all that the stream has done before.
  void write_word(StreamHandle stream, DevicePointer address, uint32_t value) const;
  // Queued on the stream: what comes later waits until the word is `value` or more (it may wrap). The GPU's scheduler
  // knows nothing of who will write it: what has to happen before must be queued before.
  void wait_for_word(StreamHandle stream, DevicePointer address, uint32_t value) const;

  // Hooks of the driver that tests use; nothing otherwise. A thread reads or writes memory that GPUs use, too; it
  // tells other threads of all that it has done; it knows of all that another thread has told, or that came before a
  // word was `value` or more.
  void note_access(const void* host, size_t bytes, bool writes, const char* by) const;
  void note_release(const void* token) const;
  void note_acquire(const void* token) const;
  void note_acquire_at_least(const void* word, uint32_t value) const;

 private:
  explicit Driver(const std::string& library);
  // Makes a call of the driver that would otherwise spoil a capture of this very thread; returns its code.
  template <typename Call>
  int relaxed(Call call) const;
  void check(int code, const char* call) const;
  void check_end(int code, const char* call) const;
  std::string text(int code, const char* call) const;

  const DriverTable* table_;
};

}  // namespace ddl
