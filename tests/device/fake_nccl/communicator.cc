#include "communicator.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <system_error>
#include <thread>

#include "driver.h"
#include "group.h"
#include "settings.h"

namespace fake_nccl {

namespace {

constexpr auto kNap = std::chrono::microseconds(200);

// Never destroyed: threads may call at exit. A handle is never given twice, so that one that is gone is noticed.
struct Registry {
  std::mutex mutex;
  std::map<void*, std::shared_ptr<Communicator>> communicators;
  std::string error;
};

Registry& registry() {
  static auto* const all = new Registry();
  return *all;
}

}  // namespace

Communicator::Communicator(const UniqueId& unique, int size, int rank, bool blocking)
    : size(size), rank(rank), blocking(blocking), boxes(static_cast<size_t>(size)) {
  const std::string text(unique.internal, ::strnlen(unique.internal, sizeof unique.internal));
  const std::string digits = text.substr(text.find('-') + 1);
  name = digits.substr(0, 8);
  id = std::stoull(digits.substr(0, 16), nullptr, 16);
  folder = settings().folder + "/" + text;
}

int Communicator::reject(int code, const std::string& text) {
  progress = Progress::kNothing;
  broken.store(code);
  return fail(code, text + " of " + this->text());
}

int Communicator::begin() {
  Mailbox content = {};
  content.size = size;
  content.version = settings().version;
  content.device = device;
  content.pid = ::getpid();
  content.host = settings().host;
  boxes[static_cast<size_t>(rank)] = create_mailbox(folder, rank, content);
  if (own() == nullptr) {
    const std::string reason = std::strerror(errno);
    if (errno == EEXIST) return reject(kInvalidUsage, "there are two ranks " + std::to_string(rank));
    return reject(kSystemError, "no mailbox (" + reason + ")");
  }
  deadline_ = std::chrono::steady_clock::now() + patience();
  progress = Progress::kJoining;
  return kInProgress;
}

int Communicator::join() {
  for (int other = 0; other < size; ++other) {
    Mailbox*& box = boxes[static_cast<size_t>(other)];
    if (box == nullptr) box = open_mailbox(folder, other);
    if (box != nullptr) continue;
    if (std::chrono::steady_clock::now() < deadline_) return kInProgress;
    return reject(kSystemError, "rank " + std::to_string(other) + " never joined the ranks");
  }
  for (int other = 0; other < size; ++other) {
    const std::string who = "rank " + std::to_string(other);
    if (box(other).size != size) return reject(kInvalidUsage, who + " was told another number of ranks");
    if (box(other).version != box(0).version) return reject(kInvalidUsage, who + " has another version of NCCL");
    for (int earlier = 0; earlier < other && !settings().shared_gpus; ++earlier) {
      if (box(earlier).host != box(other).host || box(earlier).device != box(other).device) continue;
      return reject(kInvalidUsage, "Duplicate GPU: rank " + std::to_string(earlier) + " and " + who +
                                       " both on device " + std::to_string(box(other).device));
    }
  }
  progress = Progress::kNothing;
  return kSuccess;
}

void Communicator::finalize() {
  deadline_ = std::chrono::steady_clock::now() + patience();
  progress = Progress::kFinalizing;
}

int Communicator::advance() {
  switch (progress) {
    case Progress::kNothing:
      return broken.load();
    case Progress::kJoining:
      return join();
    case Progress::kLaunching: {
      progress = Progress::kNothing;
      std::vector<std::shared_ptr<Operation>> operations;
      operations.swap(delayed);
      return queue(this, operations);
    }
    case Progress::kFinalizing:
      if (aborted.load() || all_ended()) {
        progress = Progress::kNothing;
        return kSuccess;
      }
      if (std::chrono::steady_clock::now() < deadline_) return kInProgress;
      return reject(kSystemError, "operations never ended");
  }
  return kInternalError;
}

int Communicator::settle() {
  while (true) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      const int code = advance();
      if (code != kInProgress) return code;
    }
    const CudaDriver* const cuda = driver();  // in mode "steps" nobody else runs what is waited for
    if (cuda == nullptr || cuda->steps() == 0 || cuda->step(1) == 0) std::this_thread::sleep_for(kNap);
  }
}

int Communicator::asynchronous_error() {
  const std::lock_guard<std::mutex> lock(mutex);
  if (const int code = admit("asynchronous")) broken.store(code);
  if (const int code = advance()) return code;
  for (int other = 0; other < size && settings().notices; ++other) {
    const bool aborted = box(other).aborted.load(std::memory_order_acquire) != 0;
    // It is missed where something is under way that it has not done.
    if (aborted && box(other).computed.load(std::memory_order_acquire) < numbers) return kRemoteError;
  }
  return kSuccess;
}

void Communicator::abort() {
  aborted.store(true);
  if (own() != nullptr) own()->aborted.store(1, std::memory_order_release);
  leave();
}

void Communicator::leave() {
  gone.store(true);
  const std::lock_guard<std::mutex> lock(mutex);
  delayed.clear();
  progress = Progress::kNothing;
  if (own() == nullptr) return;
  own()->left.store(1, std::memory_order_seq_cst);
  for (const Mailbox* const box : boxes) {
    if (box == nullptr || box->left.load(std::memory_order_seq_cst) == 0) return;
  }
  std::error_code ignored;  // two ranks may both be the last
  std::filesystem::remove_all(folder, ignored);
}

std::shared_ptr<Communicator> find(const char* entry, void* handle) {
  Registry& all = registry();
  std::shared_ptr<Communicator> communicator;
  {
    const std::lock_guard<std::mutex> lock(all.mutex);
    const auto known = all.communicators.find(handle);
    if (known != all.communicators.end()) communicator = known->second;
  }
  if (communicator == nullptr) {
    fail(kInvalidArgument,
         std::string(entry) + (handle == nullptr ? ": a null pointer" : ": there is no such communicator"));
    return nullptr;
  }
  if (!communicator->gone.load()) return communicator;
  fail(kInvalidArgument, std::string(entry) + ": " + communicator->text() + " was " +
                             (communicator->aborted.load() ? "aborted" : "destroyed"));
  return nullptr;
}

void* enter(const std::shared_ptr<Communicator>& communicator) {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  void* const handle = reinterpret_cast<void*>(uintptr_t{0x6000000} + 16 * (all.communicators.size() + 1));
  all.communicators[handle] = communicator;
  return handle;
}

std::string last_error() {
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.error;
}

int fail(int code, const std::string& text) {
  complain(text);
  Registry& all = registry();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.error = text;
  return code;
}

}  // namespace fake_nccl
