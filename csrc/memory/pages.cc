#include "memory/pages.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "base/error.h"

namespace ddl {

namespace {

constexpr size_t kPage = 4096;
constexpr size_t kPart = size_t{8} << 20;  // what a thread takes at a time; whole huge pages
constexpr size_t kMostThreads = 8;         // the ranks of a host do this at the same time
constexpr int kPopulateWrite = 23;         // MADV_POPULATE_WRITE, since Linux 5.14

// Returns 0, or the error.
int make_part(char* base, size_t bytes) {
  while (::madvise(base, bytes, kPopulateWrite) != 0) {
    if (errno == EINTR || errno == EAGAIN) continue;
    if (errno != EINVAL) return errno;
    for (size_t at = 0; at < bytes; at += kPage) static_cast<volatile char*>(base)[at] = 0;  // an older kernel
    return 0;
  }
  return 0;
}

size_t cores() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  return ::sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? static_cast<size_t>(CPU_COUNT(&allowed)) : 1;
}

}  // namespace

void make_pages(char* base, size_t bytes) {
  ::madvise(base, bytes, MADV_HUGEPAGE);  // where the administrator allows them for shared memory; else nothing
  std::atomic<size_t> next{0};
  std::atomic<int> problem{0};
  const auto work = [&] {
    for (size_t at = next.fetch_add(kPart); at < bytes; at = next.fetch_add(kPart)) {
      if (const int error = make_part(base + at, std::min(kPart, bytes - at))) problem.store(error);
    }
  };
  std::vector<std::thread> helpers;
  const size_t parts = (bytes + kPart - 1) / kPart;
  try {
    for (size_t i = 1; i < std::min({cores(), parts, kMostThreads}); ++i) helpers.emplace_back(work);
  } catch (const std::system_error&) {
    // No more threads are to be had: those that there are do it.
  }
  work();
  for (std::thread& helper : helpers) helper.join();
  if (problem == 0) return;
  throw Error(ErrorKind::kResourceError,
              "the host has no memory for " + std::to_string(bytes >> 20) + " MiB more of DDL's shared memory (" +
                  std::generic_category().message(problem) + "); use smaller arrays, or fewer ranks on a host");
}

}  // namespace ddl
