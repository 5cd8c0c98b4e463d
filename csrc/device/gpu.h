// One GPU of this process: two streams, one down and one up, and a thread that looks after the transfers under way.
//
// A communicator that has used arrays of that GPU holds it until it is shut down. Its thread makes all calls of the
// driver that do not belong to a submission, so that no lane ever waits for a lock of the driver. While a transfer
// waits for the GPU, the thread looks every 20 to 100 microseconds; otherwise it sleeps.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/mutex.h"
#include "device/driver.h"
#include "device/transfer.h"

namespace ddl {

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
  std::string failure(const Error& error) const;
  // A producer that makes this stream wait for its own (as DLPack does) is obeyed by all copies of later transfers.
  StreamHandle down() const { return down_; }
  ContextHandle context() const { return context_; }

  // Takes staging for the arrays and queues the copies down, behind what `producers` have now and what `down` waits
  // for. Copies up come later. If both arrays are the same memory, so are their copies. Throws kInvalidState, before
  // anything is queued, if a graph is being captured on one of these streams, and DriverError, which names the GPU,
  // if it fails.
  std::shared_ptr<Transfer> begin(StagedArray in, StagedArray out, uint64_t pieces,
                                  const std::vector<StreamHandle>& producers);

 private:
  friend class Transfer;
  explicit Gpu(int device);

  void thread_main();
  void run(std::vector<std::shared_ptr<Transfer>>* transfers);
  std::shared_ptr<Transfer> queue(StagedArray in, StagedArray out, uint64_t pieces,
                                  const std::vector<StreamHandle>& producers);
  void take_begun(std::vector<std::shared_ptr<Transfer>>* transfers);
  void kick();
  EventHandle take_event();
  void give_back(EventHandle event);

  const int device_;
  const Driver& driver_;
  const ContextHandle context_;
  StreamHandle down_ = nullptr, up_ = nullptr;

  Mutex mutex_;
  std::vector<EventHandle> events_ DDL_GUARDED_BY(mutex_);               // to be used again
  std::vector<std::shared_ptr<Transfer>> begun_ DDL_GUARDED_BY(mutex_);  // the thread does not have them yet

  std::atomic<uint32_t> kicks_{0};  // what the thread sleeps on
  std::atomic<bool> asleep_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace ddl
