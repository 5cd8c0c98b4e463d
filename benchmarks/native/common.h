// What the two limit programs share: the command line, clocks, and the file of results, which has the form of the
// Python worker's (ddl/tools/bench/loop.py): for every size the seconds of each call, and the CPU seconds of all of
// them.
#pragma once

#include <time.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>
#include <string>
#include <vector>

namespace limit {

struct Size {
  size_t bytes;
  int calls;
  int warmup;
};

struct Result {
  size_t bytes;
  std::vector<double> seconds;
  double cpu;
  int calls;
  double before = 0, after = 0;  // the round trips of probe.h around it
};

[[noreturn]] inline void die(const std::string& why) {
  std::fprintf(stderr, "limit: %s\n", why.c_str());
  std::exit(1);
}

// Arguments of the form --name value.
class Arguments {
 public:
  Arguments(int argc, char** argv) {
    for (int i = 1; i + 1 < argc; i += 2) values_[argv[i]] = argv[i + 1];
  }
  std::string text(const std::string& name, const char* otherwise = nullptr) const {
    auto entry = values_.find("--" + name);
    if (entry != values_.end()) return entry->second;
    if (otherwise == nullptr) die("missing --" + name);
    return otherwise;
  }
  long number(const std::string& name, const char* otherwise = nullptr) const {
    return std::atol(text(name, otherwise).c_str());
  }
  // bytes:calls:warmup,...
  std::vector<Size> sizes() const {
    std::vector<Size> sizes;
    std::stringstream entries(text("calls"));
    for (std::string entry; std::getline(entries, entry, ',');) {
      Size size{};
      if (std::sscanf(entry.c_str(), "%zu:%d:%d", &size.bytes, &size.calls, &size.warmup) != 3) die("bad --calls");
      sizes.push_back(size);
    }
    return sizes;
  }

 private:
  std::map<std::string, std::string> values_;
};

inline double seconds_of(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}
inline double wall() { return seconds_of(CLOCK_MONOTONIC); }
inline double cpu() { return seconds_of(CLOCK_PROCESS_CPUTIME_ID); }

// As buffer_sets in ddl/tools/bench/loop.py: how many sets of buffers are used in turn.
inline int buffer_sets(size_t bytes, int cycle) {
  const size_t fitting = (size_t{64} << 20) / bytes;
  const int wanted = fitting < 2 ? 2 : fitting > 4 ? 4 : static_cast<int>(fitting);
  return (wanted + cycle - 1) / cycle * cycle;
}

inline void write_results(const std::string& directory, int rank, const std::vector<Result>& results) {
  const std::string path = directory + "/rank." + std::to_string(rank) + ".json";
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) die("cannot write " + path);
  std::fprintf(file, "{\"rank\": %d, \"version\": \"g++ %s\", \"sizes\": {", rank, __VERSION__);
  for (const Result& result : results) {
    std::fprintf(file, "%s\"%zu\": {\"cpu\": %.9g, \"calls\": %d, \"probes\": [%.9g, %.9g], \"seconds\": [",
                 &result == &results[0] ? "" : ", ", result.bytes, result.cpu, result.calls, result.before,
                 result.after);
    for (size_t i = 0; i < result.seconds.size(); i++) {
      std::fprintf(file, "%s%.9g", i == 0 ? "" : ", ", result.seconds[i]);
    }
    std::fprintf(file, "]}");
  }
  std::fprintf(file, "}}\n");
  if (std::fclose(file) != 0) die("cannot write " + path);
}

}  // namespace limit
