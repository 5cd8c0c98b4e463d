#include "group.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <mutex>
#include <thread>

#include "driver.h"
#include "settings.h"

namespace fake_nccl {

namespace {

// A thread's group of calls, which begins with the first ncclGroupStart and ends with the last ncclGroupEnd.
struct Group {
  int depth = 0;
  int code = kSuccess;  // of the first call that failed
  std::vector<std::shared_ptr<Operation>> operations;
  std::vector<std::shared_ptr<Communicator>> joining;
};

thread_local Group group;

// What was launched on a device by this process: by communicator, the latest first.
struct Launched {
  uint64_t communicator, number;
  std::string name;
};

struct Launching {
  std::thread::id thread;
  const Communicator* communicator;
};

struct Devices {
  std::mutex mutex;
  std::map<int, std::list<Launched>> launched;
  std::map<int, std::vector<Launching>> launching;
  std::map<int, uint64_t> meetings;  // how often two threads have launched at the same time
  std::condition_variable met;
};

Devices& devices() {
  static auto* const all = new Devices();  // never destroyed: threads may call at exit
  return *all;
}

// What the ledger knows a device's launches by.
char* ledger_word(int device) {
  static char words[64];
  return &words[device & 63];
}

// A launch by this thread, while it lasts: another thread's on the same device is against NCCL's rules.
class Launch {
 public:
  explicit Launch(const Communicator& communicator) : device_(communicator.device) {
    Devices& all = devices();
    std::string objection;
    uint64_t meetings = 0;  // those before this launch
    {
      const std::lock_guard<std::mutex> lock(all.mutex);
      meetings = all.meetings[device_];
      auto& launching = all.launching[device_];
      for (const Launching& other : launching) {
        objection = "two threads launch at the same time on device " + std::to_string(device_) + ": " +
                    other.communicator->text() + " and " + communicator.text();
      }
      launching.push_back({std::this_thread::get_id(), &communicator});
      if (!objection.empty()) ++all.meetings[device_];
    }
    all.met.notify_all();
    if (!objection.empty()) complain(objection);
    if (settings().ordered_threads) {
      driver()->access(ledger_word(device_), 1, 1, ("a launch of " + communicator.text()).c_str());
    }
    if (settings().launch.count() > 0) {
      std::unique_lock<std::mutex> lock(all.mutex);
      all.met.wait_for(lock, settings().launch, [&] { return all.meetings[device_] > meetings; });
    }
  }
  ~Launch() {
    Devices& all = devices();
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto& launching = all.launching[device_];
    const auto own = [](const Launching& launch) { return launch.thread == std::this_thread::get_id(); };
    launching.erase(std::remove_if(launching.begin(), launching.end(), own), launching.end());
  }
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

 private:
  const int device_;
};

// Gives operations that are launched together their place among all of the device.
void place(const Communicator& communicator, const std::vector<std::shared_ptr<Operation>>& operations) {
  Devices& all = devices();
  const std::lock_guard<std::mutex> lock(all.mutex);
  auto& launched = all.launched[communicator.device];
  std::map<uint64_t, uint64_t> before;
  Launched own{communicator.id, 0, communicator.text()};
  const Launched* latest = nullptr;
  for (const Launched& other : launched) {
    before[other.communicator] = other.number;
    if (other.communicator == own.communicator) {
      own.number = other.number;
    } else if (latest == nullptr && other.number > 0) {
      latest = &other;
    }
  }
  for (const auto& operation : operations) {
    operation->launched_before = before;
    if (latest == nullptr) continue;
    operation->other_communicator = latest->communicator;
    operation->other_number = latest->number;
  }
  own.number += operations.size();
  launched.remove_if([&](const Launched& other) { return other.communicator == own.communicator; });
  launched.push_front(own);
}

// Launches operations of one communicator, or has that done by the next poll.
int launch(const std::shared_ptr<Communicator>& communicator,
           const std::vector<std::shared_ptr<Operation>>& operations) {
  const std::lock_guard<std::mutex> lock(communicator->mutex);
  const bool late = communicator->first && !communicator->blocking && !settings().eager;
  communicator->first = false;
  if (!late) return queue(communicator.get(), operations);
  // The real library connects the ranks in a thread of its own, and queues the operation when that is done.
  communicator->delayed = operations;
  communicator->progress = Communicator::Progress::kLaunching;
  return kInProgress;
}

}  // namespace

int queue(Communicator* communicator, const std::vector<std::shared_ptr<Operation>>& operations) {
  const CudaDriver& cuda = *driver();
  const Launch launching(*communicator);
  const Mailbox& own = *communicator->own();
  if (communicator->numbers.load() + operations.size() - own.ended.load() >= kHeaders / 2) {
    return fail(kInternalError, "the fake holds no more operations of " + communicator->text());
  }
  place(*communicator, operations);
  const uint64_t barrier = communicator->numbers.load();
  for (const auto& operation : operations) operation->announce(barrier);
  std::vector<FakeKernel> kernels;
  for (const auto& operation : operations) kernels.push_back(operation->bringing(operation));
  for (const auto& operation : operations) kernels.push_back(operation->taking(operation));
  int code = cuda.push_context(communicator->context);
  if (code == 0) {
    code = cuda.launch(operations[0]->request.stream, kernels.data(), kernels.size());
    (void)cuda.pop_context(nullptr);
  } else {
    for (const FakeKernel& kernel : kernels) kernel.release(kernel.argument);
  }
  if (code == 0) return kSuccess;
  communicator->broken.store(kUnhandledCudaError);
  return fail(kUnhandledCudaError,
              communicator->text() + ": an operation was refused by the driver: error " + std::to_string(code));
}

int submit(const std::shared_ptr<Communicator>& communicator, const Request& request) {
  auto operation = std::make_shared<Operation>(communicator, request);
  int code = kSuccess;
  const std::string refusal = operation->refusal();
  if (!refusal.empty()) {
    code = fail(kInvalidArgument, std::string(request.entry) + ": " + refusal + " (" + communicator->text() + ")");
  } else if (request.count > 0 && group.depth == 0) {
    return launch(communicator, {operation});
  } else if (request.count > 0) {
    group.operations.push_back(std::move(operation));
  }
  if (group.code == kSuccess) group.code = group.depth > 0 ? code : kSuccess;
  return code;
}

int begun(const std::shared_ptr<Communicator>& communicator) {
  {
    Devices& all = devices();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.launched[communicator->device].push_back({communicator->id, 0, communicator->text()});
  }
  if (!communicator->blocking) return kInProgress;
  if (group.depth == 0) return communicator->settle();
  group.joining.push_back(communicator);
  return kSuccess;
}

int group_start() {
  ++group.depth;
  return kSuccess;
}

int group_end() {
  if (group.depth == 0) return fail(kInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group.depth > 0) return kSuccess;
  Group ended;
  std::swap(ended, group);
  int code = ended.code;
  for (const auto& communicator : ended.joining) {
    const int joined = communicator->settle();
    if (code == kSuccess) code = joined;
  }
  if (code != kSuccess) return code;
  while (!ended.operations.empty()) {
    const std::shared_ptr<Communicator> communicator = ended.operations[0]->communicator;
    std::vector<std::shared_ptr<Operation>> together, rest;
    for (const auto& operation : ended.operations) {
      (operation->communicator == communicator ? together : rest).push_back(operation);
    }
    ended.operations = rest;
    for (const auto& operation : together) {
      if (operation->request.stream == together[0]->request.stream) continue;
      return fail(kInternalError,
                  "a group with several streams for " + communicator->text() + ", which the fake does not play");
    }
    const int launched = launch(communicator, together);
    if (launched != kSuccess && launched != kInProgress) return launched;
    if (launched == kInProgress) code = launched;
  }
  return code;
}

std::string name_on_device(int device, uint64_t communicator) {
  Devices& all = devices();
  const std::lock_guard<std::mutex> lock(all.mutex);
  for (const Launched& other : all.launched[device]) {
    if (other.communicator == communicator) return other.name;
  }
  return "";
}

}  // namespace fake_nccl
