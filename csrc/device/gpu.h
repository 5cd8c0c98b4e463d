// One GPU of this process, and a thread that looks after the transfers under way.
//
// A communicator that has used arrays of that GPU holds it until it is shut down. Its thread makes all calls of the
// driver that do not belong to a submission, so that no lane ever waits for a lock of the driver. The stream itself
// writes a word in memory when data has arrived, so a lane does not wait for the thread either. While something
// moves, the thread polls, and yields its core to others. Afterwards, while a transfer waits for the GPU, it looks
// every 20 to 100 microseconds; otherwise it sleeps.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/driver.h"
#include "device/room.h"
#include "device/transfer.h"

namespace ddl {

class Gpu;

// The streams by which one communicator copies for its collectives, or for its messages; one down and one up. Those
// of two communicators do not wait for one another, nor do messages for collectives: they may come in another order
// on another rank. It must outlive its transfers, until they have ended.
class CopyStreams {
 public:
  explicit CopyStreams(std::shared_ptr<Gpu> gpu);
  ~CopyStreams();
  CopyStreams(const CopyStreams&) = delete;
  CopyStreams& operator=(const CopyStreams&) = delete;

  Gpu& gpu() const { return *gpu_; }

 private:
  friend class Gpu;
  friend class Transfer;
  const std::shared_ptr<Gpu> gpu_;
  StreamHandle down_ = nullptr, up_ = nullptr;
  Room room_down_, room_up_;
  Mutex queueing_;  // what belongs to one transfer is queued in one go
  // Transfers whose copies up the GPU's thread has still to queue. While there are any, no later copy up waits for a
  // word: their copies would be queued behind it, and an earlier operation would end after a later one.
  std::atomic<int> unqueued_{0};
  std::atomic<int> deferred_{0};  // transfers whose copies down are not queued yet
  bool held_up_ = false;          // one of them has found no room just now; the GPU's thread asks and says it
};

class Gpu {
 public:
  // The GPU of that number: the same object for all who hold it at the same time.
  static std::shared_ptr<Gpu> of(int device);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  int device() const { return device_; }
  // Throws DriverError, which names the GPU, if it has failed.
  void check() const;
  // The same error with the number of the GPU, and what it means.
  DriverError failure(const DriverError& error) const { return failure_of(device_, error); }
  static DriverError failure_of(int device, const DriverError& error);
  ContextHandle context() const { return context_; }
  // Why no stream waits for results here although it is to; once in the life of this object, otherwise "".
  std::string take_reason_to_wait_on_host();

  // A stream that an array's owner may make wait for its own streams, as DLPack does; it is taken for one call.
  class Gate {
   public:
    explicit Gate(std::shared_ptr<Gpu> gpu);
    ~Gate();
    Gate(const Gate&) = delete;
    Gate& operator=(const Gate&) = delete;
    StreamHandle stream() const { return stream_; }
    // It is not part of a capture, and may be taken again. Otherwise it is thrown away: a stream that waits for one
    // that is captured belongs to that capture.
    void pass() { passed_ = true; }

   private:
    const std::shared_ptr<Gpu> gpu_;
    StreamHandle stream_ = nullptr;
    bool passed_ = false;
  };

  // Takes staging for the arrays; nothing is queued yet. If both arrays are the same memory, so are their copies.
  // `ordered`: such operations come in the same order on all ranks, so streams may wait for them.
  std::shared_ptr<Transfer> prepare(CopyStreams* streams, StagedArray in, StagedArray out, Batches batches,
                                    bool ordered);
  // Queues the copies down, behind all that is queued on `producers` now. Throws kInvalidState, before anything is
  // queued, if a graph is being captured on one of these streams, and DriverError, which names the GPU. Then the
  // transfer is cancelled, and ends when the GPU has done what was queued. Otherwise `follow` is called next,
  // whatever happens.
  void begin(const std::shared_ptr<Transfer>& transfer, const std::vector<StreamHandle>& producers);
  // From now on the GPU's thread looks after the transfer. `submitted`: its operation was, so streams can wait for
  // its results, where that is wanted and possible.
  void follow(const std::shared_ptr<Transfer>& transfer, bool submitted);

 private:
  friend class CopyStreams;
  friend class Transfer;
  explicit Gpu(int device);

  void thread_main();
  void run(std::vector<std::shared_ptr<Transfer>>* transfers);
  void queue(Transfer* transfer, const std::vector<StreamHandle>& producers);
  // Whether streams of this GPU write the words by which transfers say that data has arrived.
  bool can_write_words();
  // Whether calls return before what they queue has run. Needs streams that write words.
  bool queues_behind_words();
  void take_begun(std::vector<std::shared_ptr<Transfer>>* transfers);
  void kick();
  EventHandle take_event();
  void give_back(EventHandle event);

  const int device_;
  const Driver& driver_;
  const ContextHandle context_;
  StreamHandle probe_ = nullptr;  // for questions
  bool writes_words_ = false;
  bool streams_wait_ = false;  // for words, if they are to

  Mutex mutex_;
  std::string reason_to_wait_on_host_ DDL_GUARDED_BY(mutex_);
  std::deque<StreamHandle> gates_ DDL_GUARDED_BY(mutex_);                // to be used again
  std::vector<StreamHandle> captured_gates_ DDL_GUARDED_BY(mutex_);      // perhaps part of a capture
  std::vector<EventHandle> events_ DDL_GUARDED_BY(mutex_);               // to be used again
  std::vector<std::shared_ptr<Transfer>> begun_ DDL_GUARDED_BY(mutex_);  // the thread does not have them yet

  std::atomic<uint32_t> kicks_{0};  // what the thread sleeps on
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> deferred_{0};  // the same of all its streams: then no stream is made to wait for a word
  std::thread thread_;
};

}  // namespace ddl
