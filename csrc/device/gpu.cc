#include "device/gpu.h"

#include <sched.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "base/schedule.h"
#include "device/words.h"

namespace ddl {

namespace {

constexpr Nanoseconds kTrial = 2 * kSecond;  // a machine that is busy is no reason
constexpr Nanoseconds kShortestNap = 20 * kMicrosecond, kLongestNap = 100 * kMicrosecond;

Mutex opening;
std::map<int, std::weak_ptr<Gpu>> opened DDL_GUARDED_BY(opening);

}  // namespace

std::shared_ptr<Gpu> Gpu::of(int device) {
  (void)Driver::get();  // throws in a forked child, which must not touch what is opened
  const Lock lock(opening);
  std::shared_ptr<Gpu> gpu = opened[device].lock();
  if (gpu == nullptr) {
    try {
      gpu.reset(new Gpu(device));
    } catch (const DriverError& error) {
      throw failure_of(device, error);
    }
    opened[device] = gpu;
  }
  return gpu;
}

Gpu::Gpu(int device) : device_(device), driver_(Driver::get()), context_(driver_.context_of(device)) {
  const Driver::Current current(driver_, context_);
  probe_ = driver_.make_stream();
  writes_words_ = can_write_words();
  streams_wait_ = Driver::waits_on_gpu() && writes_words_ && queues_behind_words();
  thread_ = std::thread([this] { thread_main(); });
}

Gpu::~Gpu() {
  stop_.store(true, std::memory_order_seq_cst);
  kick();
  thread_.join();
  try {
    const Driver::Current current(driver_, context_);
    const Lock lock(mutex_);
    for (EventHandle event : events_) driver_.destroy_event(event);
    for (StreamHandle gate : gates_) driver_.destroy_stream(gate);
    for (StreamHandle gate : captured_gates_) driver_.destroy_stream(gate);
    driver_.destroy_stream(probe_);
  } catch (const Error&) {
    // The GPU has failed. Whoever used it has been told, and the driver takes all of this back with the process.
  }
}

bool Gpu::can_write_words() {
  const DevicePointer trial = Words::process().trial(driver_);
  if (trial == 0) return false;
  try {
    driver_.write_word(probe_, trial, 1);
  } catch (const DriverError& error) {
    if (error.fatal()) throw;
    return false;  // an older driver, where an administrator must allow it
  }
  return true;
}

bool Gpu::queues_behind_words() {
  // Never given back: perhaps a stream still writes it when this object goes.
  const Words::Word word = Words::process().take(driver_);
  if (word.address == 0) return false;
  std::atomic<bool> returned{false}, waited{false};
  std::thread releasing([&] {  // a call that waits for the word would do so for ever
    const Nanoseconds deadline = now_ns() + kTrial;
    while (!returned.load(std::memory_order_acquire) && now_ns() < deadline) nap(kLongestNap);
    waited.store(!returned.load(std::memory_order_acquire), std::memory_order_release);
    word.value->store(word.base + 1, std::memory_order_release);
  });
  std::optional<DriverError> refusal;
  try {
    driver_.wait_for_word(probe_, word.address, word.base + 1);
    driver_.write_word(probe_, word.address, word.base + 2);
  } catch (const DriverError& error) {
    refusal = error;
  }
  returned.store(true, std::memory_order_release);
  releasing.join();
  if (refusal && refusal->fatal()) throw DriverError(*refusal);
  if (!waited) return !refusal;
  const Lock lock(mutex_);
  reason_to_wait_on_host_ =
      "DDL_GPU_WAIT=stream has no effect on GPU " + std::to_string(device_) +
      ": calls of the driver return only when what they queue has run (CUDA_LAUNCH_BLOCKING=1, a debugger or a "
      "profiler), so the host waits for results";
  return false;
}

std::string Gpu::take_reason_to_wait_on_host() {
  const Lock lock(mutex_);
  return std::exchange(reason_to_wait_on_host_, "");
}

void Gpu::check() const {
  try {
    const Driver::Current current(driver_, context_);
    (void)driver_.idle(probe_);
  } catch (const DriverError& error) {
    throw failure(error);
  }
}

DriverError Gpu::failure_of(int device, const DriverError& error) {
  const std::string gpu = "GPU " + std::to_string(device);
  if (!error.fatal()) return {gpu + ": " + error.what(), error.code()};
  return {gpu + " has failed: " + error.what() + "; only a new process can use it again", error.code()};
}

Gpu::Gate::Gate(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
  {
    const Lock lock(gpu_->mutex_);
    if (!gpu_->gates_.empty()) {
      stream_ = gpu_->gates_.front();  // the one that has been idle for longest
      gpu_->gates_.pop_front();
      return;
    }
  }
  stream_ = gpu_->driver_.make_stream();
}

Gpu::Gate::~Gate() {
  try {
    if (!passed_) passed_ = !gpu_->driver_.capturing(stream_);
  } catch (const Error&) {
    // It is not known, so it counts as captured.
  }
  const Lock lock(gpu_->mutex_);
  if (passed_) {
    gpu_->gates_.push_back(stream_);
  } else {
    gpu_->captured_gates_.push_back(stream_);
  }
}

CopyStreams::CopyStreams(std::shared_ptr<Gpu> gpu) : gpu_(std::move(gpu)) {
  const Driver& driver = gpu_->driver_;
  try {
    const Driver::Current current(driver, gpu_->context_);
    down_ = driver.make_stream();
    up_ = driver.make_stream();
  } catch (const DriverError& error) {
    throw gpu_->failure(error);
  }
}

CopyStreams::~CopyStreams() {
  const Driver& driver = gpu_->driver_;
  try {
    const Driver::Current current(driver, gpu_->context_);
    for (StreamHandle stream : {down_, up_}) driver.destroy_stream(stream);  // what they have queued is done first
  } catch (const Error&) {
    // As in ~Gpu.
  }
}

std::shared_ptr<Transfer> Gpu::prepare(CopyStreams* streams, StagedArray in, StagedArray out, Batches batches,
                                       bool ordered) {
  try {
    const Driver::Current current(driver_, context_);
    auto transfer = std::make_shared<Transfer>(streams, std::move(in), std::move(out), batches);
    transfer->take_staging(ordered);
    return transfer;
  } catch (const DriverError& error) {
    throw failure(error);
  }
}

void Gpu::begin(const std::shared_ptr<Transfer>& transfer, const std::vector<StreamHandle>& producers) {
  try {
    queue(transfer.get(), producers);
  } catch (const DriverError& error) {
    transfer->cancel();
    follow(transfer, false);
    throw failure(error);
  } catch (...) {
    transfer->cancel();
    follow(transfer, false);
    throw;
  }
}

void Gpu::queue(Transfer* transfer, const std::vector<StreamHandle>& producers) {
  const Driver::Current current(driver_, context_);
  if (std::any_of(producers.begin(), producers.end(),
                  [this](StreamHandle producer) { return driver_.capturing(producer); })) {
    throw Error(ErrorKind::kInvalidState,
                "a CUDA graph is being captured on the array's stream, and a collective cannot be a part of a graph; "
                "call it outside of the capture");
  }
  // Copies up need not wait for the producers: a piece leaves only after its arrival was seen, which comes behind
  // them on the stream down, also for an array that is written only.
  for (StreamHandle producer : producers) {
    transfer->ready_.push_back(take_event());
    driver_.record(transfer->ready_.back(), producer);
  }
  const Lock lock(transfer->streams_->queueing_);
  // What was deferred comes first, so that it comes at all.
  if (transfer->streams_->deferred_.load(std::memory_order_relaxed) == 0 && transfer->take_room_down()) {
    transfer->queue_down();
  } else {
    transfer->set_deferred(true);
  }
}

void Gpu::follow(const std::shared_ptr<Transfer>& transfer, bool submitted) {
  transfer->streams_->unqueued_.fetch_add(1, std::memory_order_relaxed);
  if (submitted) transfer->queue_up_behind_words();
  driver_.note_release(&begun_);
  {
    const Lock lock(mutex_);
    begun_.push_back(transfer);
  }
  kick();
}

void Gpu::kick() {
  kicks_.fetch_add(1, std::memory_order_seq_cst);
  if (asleep_.load(std::memory_order_seq_cst)) futex_wake(&kicks_);
}

EventHandle Gpu::take_event() {
  {
    const Lock lock(mutex_);
    if (!events_.empty()) {
      const EventHandle event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  return driver_.make_event();
}

void Gpu::give_back(EventHandle event) {
  const Lock lock(mutex_);
  events_.push_back(event);
}

void Gpu::take_begun(std::vector<std::shared_ptr<Transfer>>* transfers) {
  const Lock lock(mutex_);
  std::move(begun_.begin(), begun_.end(), std::back_inserter(*transfers));
  begun_.clear();
}

void Gpu::thread_main() {
  ask_for_short_turns();
  ask_for_exact_naps();
  std::vector<std::shared_ptr<Transfer>> transfers;
  try {
    const Driver::Current current(driver_, context_);
    driver_.leave_captures_alone();
    run(&transfers);
  } catch (const DriverError& error) {
    // The context itself cannot be used. Every transfer, also those to come, ends with this.
    while (!stop_.load(std::memory_order_seq_cst)) {
      const uint32_t kicks = kicks_.load(std::memory_order_seq_cst);
      take_begun(&transfers);
      for (const auto& transfer : transfers) transfer->fail(error);
      transfers.clear();
      futex_wait(&kicks_, kicks, kSecond);
    }
  }
}

void Gpu::run(std::vector<std::shared_ptr<Transfer>>* transfers) {
  Nanoseconds nap = kShortestNap, moved_at = 0;
  uint32_t last = 0;
  while (true) {
    const uint32_t kicks = kicks_.load(std::memory_order_seq_cst);
    if (kicks != last) moved_at = now_ns();
    last = kicks;
    take_begun(transfers);
    driver_.note_acquire(&begun_);
    bool moved = false, waits = false;
    for (const auto& transfer : *transfers) transfer->streams_->held_up_ = false;
    for (const auto& transfer : *transfers) moved |= transfer->progress(&waits);
    transfers->erase(
        std::remove_if(transfers->begin(), transfers->end(), [](const auto& transfer) { return transfer->ended(); }),
        transfers->end());
    if (stop_.load(std::memory_order_seq_cst)) return;  // who holds the GPU has waited for all transfers
    if (moved) {
      nap = kShortestNap;
      moved_at = now_ns();
      continue;
    }
    if (!transfers->empty() && now_ns() - moved_at < Transfer::kAwake) {
      ::sched_yield();
      continue;
    }
    asleep_.store(true, std::memory_order_seq_cst);
    futex_wait(&kicks_, kicks, waits ? nap : kSecond);
    asleep_.store(false, std::memory_order_seq_cst);
    nap = waits ? std::min(2 * nap, kLongestNap) : kShortestNap;
  }
}

}  // namespace ddl
