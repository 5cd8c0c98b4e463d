// Writes to a child process through its gate, and prints what came of it, a line each.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>

#include "memory/kernel_write.h"

namespace {

using ddl::KernelRead;
using ddl::KernelWrite;

constexpr size_t kBytes = 300'001;
constexpr int kSteps = 4;

// What parent and child tell each other. The child's data is its own.
struct Shared {
  std::atomic<int> step, done;
  ddl::ProcessMark mark;
  uint64_t gate, data, half_mapped;
  size_t changed;
};

const char* text(KernelRead::Outcome outcome) {
  return outcome == KernelRead::Outcome::kDone ? "done" : outcome == KernelRead::Outcome::kGone ? "gone" : "refused";
}

void await(const std::atomic<int>& word, int value) {
  while (word.load() < value) ::usleep(100);
}

char* mapped() {
  return static_cast<char*>(::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

[[noreturn]] void be_written(Shared* shared) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ddl::WriteGate gate;
  char *const data = mapped(), *const half_mapped = mapped();
  ::mprotect(half_mapped, 4096, PROT_NONE);
  shared->mark = KernelRead::own_mark();
  shared->gate = gate.address();
  shared->data = reinterpret_cast<uintptr_t>(data);
  shared->half_mapped = reinterpret_cast<uintptr_t>(half_mapped);
  for (int step = 1; step <= kSteps; ++step) {
    shared->done.store(step);
    await(shared->step, step);
    shared->changed = 0;
    for (size_t i = 0; i < kBytes; ++i) shared->changed += data[i] != 0 ? 1 : 0;
    std::memset(data, 0, kBytes);
    if (step == 2) gate.close();
  }
  shared->done.store(kSteps + 1);
  while (true) {
  }
}

}  // namespace

int main() {
  auto* const shared = static_cast<Shared*>(
      ::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  const int child = ::fork();
  if (child == 0) be_written(shared);
  char* const from = mapped();
  std::memset(from, 7, kBytes);
  int step = 0;
  const auto write = [&](const char* what, const ddl::ProcessMark& mark, uint64_t to) {
    await(shared->done, ++step);
    const KernelRead::Outcome outcome = KernelWrite::copy(child, mark, shared->gate, to, from, kBytes);
    shared->step.store(step);
    await(shared->done, step + 1);
    std::printf("%s: %s, %zu changed\n", what, text(outcome), shared->changed);
  };
  await(shared->done, 1);
  ddl::ProcessMark another = shared->mark;
  another.number[0] += 1;
  write("an open gate", shared->mark, shared->data);
  write("data that is not there", shared->mark, shared->half_mapped);
  write("a closed gate", shared->mark, shared->data);
  write("another process", another, shared->data);
  std::printf("written: %s\n", KernelWrite::bytes_written() == kBytes ? "once" : "not once");

  const auto at_work = [&](const char* what) {
    std::printf("%s: %s\n", what, KernelWrite::may_be_at_work(child) ? "may be at work" : "is not at work");
  };
  at_work("a process that computes");
  ::kill(child, SIGSTOP);
  ::waitpid(child, nullptr, WUNTRACED);
  at_work("a process that is stopped");
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  at_work("a process that has ended");
  const KernelRead::Outcome outcome =
      KernelWrite::copy(child, shared->mark, shared->gate, shared->data, from, kBytes);
  std::printf("after its end: %s\n", text(outcome));
  return 0;
}
