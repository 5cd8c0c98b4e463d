// A communicator of this process: who its ranks are, what it is about to do, and what has become of it.
//
// Operations that streams run hold it, too, and outlive its handle. `mutex` guards what launches and polls change;
// operations read atomics only, since they are asked under the driver's lock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "abi.h"
#include "mailbox.h"

namespace fake_nccl {

class Operation;

class Communicator {
 public:
  // What a call has begun that did not end in it, as the communicator does not block.
  enum class Progress { kNothing, kJoining, kLaunching, kFinalizing };

  Communicator(const UniqueId& id, int size, int rank, bool blocking);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // Begins to join the other ranks; a code.
  int begin();
  // Begins to wait for its operations. With `mutex` held.
  void finalize();
  // Goes on with what is in progress; kInProgress, or the code with which it ended. With `mutex` held.
  int advance();
  // Waits until it is no longer in progress. The caller holds nothing.
  int settle();
  // The same, and the error that befell it later.
  int asynchronous_error();

  bool all_ended() const { return own()->ended.load(std::memory_order_acquire) >= numbers; }
  void abort();
  void leave();  // its files go when the last rank has left

  Mailbox* own() const { return boxes[static_cast<size_t>(rank)]; }
  const Mailbox& box(int other) const { return *boxes[static_cast<size_t>(other)]; }
  std::string text() const { return "communicator " + name; }

  const int size, rank;
  const bool blocking;
  std::string name, folder;
  uint64_t id = 0;
  void* context = nullptr;
  int device = -1;  // of the machine

  std::mutex mutex;
  Progress progress = Progress::kNothing;
  bool first = true;  // nothing was launched yet
  std::vector<std::shared_ptr<Operation>> delayed;
  std::atomic<bool> finalized{false}, gone{false};

  std::vector<Mailbox*> boxes;       // complete once all have joined; mapped for good
  std::atomic<uint64_t> numbers{0};  // of operations that were launched
  uint64_t removed = 0;              // what this rank brought until then is needed no more; of who brings
  std::atomic<bool> aborted{false};
  std::atomic<int> broken{kSuccess};  // what it failed with; it can only be aborted then

 private:
  int join();
  int reject(int code, const std::string& text);

  std::chrono::steady_clock::time_point deadline_;
};

// The handle's communicator; null, with a violation, if there is none or it is gone.
std::shared_ptr<Communicator> find(const char* entry, void* handle);
void* enter(const std::shared_ptr<Communicator>& communicator);

// The last error's text, of this process; and an error's code, after it has become that text and a violation.
std::string last_error();
int fail(int code, const std::string& text);

}  // namespace fake_nccl
