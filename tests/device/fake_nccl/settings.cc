#include "settings.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>

#include "abi.h"

namespace fake_nccl {

namespace {

std::string text_of(const char* variable) {
  const char* const value = std::getenv(variable);
  return value == nullptr ? "" : value;
}

int number_of(const char* variable, int otherwise) {
  const std::string text = text_of(variable);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

uint64_t host_number() {
  std::string name = text_of("NCCL_HOSTID");
  if (name.empty()) {
    char own[256] = {};
    (void)::gethostname(own, sizeof own - 1);
    name = own;
  }
  return std::hash<std::string>()(name);
}

std::string meeting_folder() {
  for (const char* const variable : {"FAKE_NCCL_FOLDER", "RANKS_FOLDER", "TMPDIR"}) {
    const std::string folder = text_of(variable);
    if (!folder.empty()) return folder;
  }
  return "/tmp";
}

struct Refusal {
  int code;
  int count;  // below 0: for good
};

struct Entries {
  std::mutex mutex;
  std::map<std::string, uint64_t> calls;
  std::map<std::string, Refusal> refusals;
};

Entries& entries() {
  static auto* const all = [] {
    auto* const fresh = new Entries();  // never destroyed: threads may call at exit
    std::istringstream parts(text_of("FAKE_NCCL_REFUSE"));
    for (std::string part; std::getline(parts, part, ',');) {
      const size_t equals = part.find('=');
      if (equals != std::string::npos) fresh->refusals[part.substr(0, equals)] = {std::atoi(&part[equals + 1]), -1};
    }
    return fresh;
  }();
  return *all;
}

std::atomic<int>& patience_ms() {
  static std::atomic<int> milliseconds(number_of("FAKE_NCCL_PATIENCE_MS", 100000));
  return milliseconds;
}

}  // namespace

std::chrono::milliseconds patience() { return std::chrono::milliseconds(patience_ms().load()); }

const Settings& settings() {
  static const auto* const once = new Settings{
      number_of("FAKE_NCCL_VERSION", 23007),
      std::chrono::milliseconds(number_of("FAKE_NCCL_LAUNCH_MS", 0)),
      number_of("FAKE_NCCL_EAGER", 0) != 0,
      number_of("FAKE_NCCL_NOTICES", 1) != 0,
      number_of("FAKE_NCCL_ORDERED_THREADS", 0) != 0,
      number_of("NCCL_MULTI_RANK_GPU_ENABLE", 0) != 0,
      host_number(),
      meeting_folder(),
  };
  return *once;
}

int admit(const char* entry) {
  Entries& all = entries();
  const std::lock_guard<std::mutex> lock(all.mutex);
  ++all.calls[entry];
  const auto refusal = all.refusals.find(entry);
  if (refusal == all.refusals.end() || refusal->second.count == 0) return kSuccess;
  if (refusal->second.count > 0) --refusal->second.count;
  return refusal->second.code;
}

// The next `count` calls of an entry fail with this code and do nothing; -1: all. "asynchronous" is what
// ncclCommGetAsyncError tells.
FAKE_EXPORT void fake_nccl_refuse(const char* entry, int code, int count) {
  Entries& all = entries();
  const std::lock_guard<std::mutex> lock(all.mutex);
  all.refusals[entry] = {code, count};
}

FAKE_EXPORT void fake_nccl_patience(int milliseconds) { patience_ms().store(milliseconds); }

FAKE_EXPORT uint64_t fake_nccl_calls(const char* entry) {
  Entries& all = entries();
  const std::lock_guard<std::mutex> lock(all.mutex);
  return all.calls[entry];
}

}  // namespace fake_nccl
