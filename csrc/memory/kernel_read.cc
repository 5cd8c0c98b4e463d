#include "memory/kernel_read.h"

#include <sys/mman.h>
#include <sys/random.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/helpers.h"
#include "base/process.h"
#include "memory/remote.h"

namespace ddl {

namespace {

using Outcome = KernelRead::Outcome;

std::atomic<uint64_t> bytes_read_so_far{0};

// One call reads the mark and the data, so both are of the same process.
Outcome read_part(int pid, const ProcessMark& mark, char* to, uint64_t address, uint64_t bytes) {
  uint64_t done = 0;
  while (done < bytes) {  // a call reads 2 GiB at most
    decltype(mark.number) number{};
    const iovec local[] = {{number.data(), sizeof number}, {to + done, bytes - done}};
    const iovec there[] = {remote(mark.address, sizeof number), remote(address + done, bytes - done)};
    const ssize_t got = ::process_vm_readv(pid, local, 2, there, 2, 0);
    if (got < 0 && errno != ESRCH) return Outcome::kRefused;
    if (got < static_cast<ssize_t>(sizeof number) || number != mark.number) return Outcome::kGone;
    const uint64_t more = static_cast<uint64_t>(got) - sizeof number;
    if (more == 0) return Outcome::kRefused;
    done += more;
  }
  return Outcome::kDone;
}

// --- whether it pays ----------------------------------------------------------------------------------------------

constexpr uint64_t kTried[] = {8 << 10, 16 << 10, 64 << 10, 256 << 10};
constexpr uint64_t kMostTried = kTried[3];
constexpr uint64_t kShared = 2 << 20;  // as long as what PieceBuffers goes round in

template <typename Function>
Nanoseconds least_time_of(Function function) {
  Nanoseconds least = kSecond;
  for (int i = 0; i < 4; ++i) {
    const Nanoseconds begin = now_ns();
    function();
    least = std::min(least, now_ns() - begin);
  }
  return least;
}

// A reader copies the data either way. So what the kernel's way adds for it, its pages above all, is compared with
// the owner's copy to shared memory. That takes longer than here, where no peer has read those lines before: two
// ranks gained from 5 KiB on where the two times were equal at 14 KiB.
constexpr Nanoseconds kTimesAsLong = 2;

uint64_t measure() {
  const uint64_t total = 2 * kMostTried + kShared;
  void* const memory =
      ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return KernelRead::kNever;
  char* const from = static_cast<char*>(memory);
  char *const to = from + kMostTried, *const shared = to + kMostTried;
  uint64_t least = KernelRead::kNever, next = 0;
  for (uint64_t bytes : kTried) {
    bool done = true;
    const Nanoseconds by_kernel = least_time_of([&] {
      done &= read_part(process_id(), KernelRead::own_mark(), to, reinterpret_cast<uintptr_t>(from), bytes) ==
              Outcome::kDone;
    });
    const Nanoseconds directly = least_time_of([&] { std::memcpy(to, from, bytes); });
    const Nanoseconds to_shared = least_time_of([&] {
      std::memcpy(shared + next, from, bytes);
      next = (next + bytes) % kShared;
    });
    if (!done || by_kernel - directly > kTimesAsLong * to_shared) continue;
    least = bytes;
    break;
  }
  ::munmap(memory, total);
  return least;
}

}  // namespace

const ProcessMark& KernelRead::own_mark() {
  static const ProcessMark mark = [] {
    static decltype(ProcessMark::number) number;
    if (::getrandom(number.data(), sizeof number, 0) != static_cast<ssize_t>(sizeof number)) throw_errno("getrandom");
    return ProcessMark{reinterpret_cast<uintptr_t>(number.data()), number};
  }();
  return mark;
}

KernelRead::Outcome KernelRead::copy(int pid, const ProcessMark& mark, void* to, uint64_t address, uint64_t bytes) {
  std::atomic<Outcome> worst{Outcome::kDone};
  Helpers::share(bytes, [&](size_t begin, size_t end) {
    const Outcome outcome = read_part(pid, mark, static_cast<char*>(to) + begin, address + begin, end - begin);
    if (outcome != Outcome::kDone) worst.store(outcome);
  });
  if (worst.load() == Outcome::kDone) bytes_read_so_far.fetch_add(bytes, std::memory_order_relaxed);
  return worst.load();
}

KernelRead::Outcome KernelRead::find(int pid, const ProcessMark& mark) {
  decltype(mark.number) number{};
  return read_part(pid, mark, reinterpret_cast<char*>(&number), mark.address, sizeof number);
}

bool KernelRead::possible(const void* data, uint64_t bytes) {
  char ends[2];
  const iovec local{ends, sizeof ends};
  const auto address = reinterpret_cast<uintptr_t>(data);
  const iovec there[] = {remote(address, 1), remote(address + bytes - 1, 1)};
  return ::process_vm_readv(process_id(), &local, 1, there, 2, 0) == sizeof ends;
}

uint64_t KernelRead::pays_from() {
  static const uint64_t bytes = measure();
  return bytes;
}

uint64_t KernelRead::bytes_read() { return bytes_read_so_far.load(std::memory_order_relaxed); }

}  // namespace ddl
