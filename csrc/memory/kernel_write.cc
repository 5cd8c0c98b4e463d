#include "memory/kernel_write.h"

#include <dirent.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "base/error.h"
#include "base/helpers.h"
#include "memory/remote.h"

namespace ddl {

namespace {

using Outcome = KernelRead::Outcome;

std::atomic<uint64_t> bytes_written_so_far{0};

size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

Outcome write_part(int pid, const ProcessMark& mark, uint64_t gate, uint64_t address, const char* from,
                   uint64_t bytes) {
  // Unlike a read, this cannot look at the mark in the same call. In between, the process would have to end, and all
  // other process ids to be given away, until a new process has this one, and a page of its own where the gate was.
  const Outcome seen = KernelRead::find(pid, mark);
  if (seen != Outcome::kDone) return seen;
  uint64_t done = 0;
  while (done < bytes) {  // a call writes 2 GiB at most
    char passes = 1;
    const iovec local[] = {{&passes, 1}, {const_cast<char*>(from) + done, bytes - done}};
    const iovec there[] = {remote(gate, 1), remote(address + done, bytes - done)};
    const ssize_t put = ::process_vm_writev(pid, local, 2, there, 2, 0);
    if (put < 0 && (errno == ESRCH || errno == EFAULT)) return Outcome::kGone;  // EFAULT: the gate is closed
    if (put <= 1) return Outcome::kRefused;
    done += static_cast<uint64_t>(put) - 1;
  }
  return Outcome::kDone;
}

// The state of a thread, the letter behind its name in /proc/PID/task/TID/stat; 0: it has ended.
char state_of(const std::string& folder, const char* thread) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(
      std::fopen((folder + "/" + thread + "/stat").c_str(), "re"), std::fclose);
  char line[256] = {};
  if (file == nullptr || std::fgets(line, sizeof line, file.get()) == nullptr) return 0;
  const char* const name_end = std::strrchr(line, ')');
  return name_end != nullptr && name_end[1] == ' ' ? name_end[2] : 'R';
}

}  // namespace

WriteGate::WriteGate()
    // Shared, so that the kernel never makes it one mapping with another one, of which mprotect would be a part.
    : page_(::mmap(nullptr, page_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
  if (page_ == MAP_FAILED) throw_errno("mmap of a page");
}

// A closed gate stays where it is: what is mapped there next would be open for a call that is late.
WriteGate::~WriteGate() {
  if (!closed_.load()) ::munmap(page_, page_bytes());
}

void WriteGate::close() {
  if (!closed_.exchange(true) && ::mprotect(page_, page_bytes(), PROT_NONE) != 0) throw_errno("mprotect of a page");
}

KernelRead::Outcome KernelWrite::copy(int pid, const ProcessMark& mark, uint64_t gate, uint64_t address,
                                      const void* from, uint64_t bytes) {
  std::atomic<Outcome> worst{Outcome::kDone};
  Helpers::share(bytes, [&](size_t begin, size_t end) {
    const char* const part = static_cast<const char*>(from) + begin;
    const Outcome outcome = write_part(pid, mark, gate, address + begin, part, end - begin);
    if (outcome != Outcome::kDone) worst.store(outcome);
  });
  if (worst.load() == Outcome::kDone) bytes_written_so_far.fetch_add(bytes, std::memory_order_relaxed);
  return worst.load();
}

bool KernelWrite::may_be_at_work(int pid) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/task";
  const std::unique_ptr<DIR, int (*)(DIR*)> threads(::opendir(folder.c_str()), ::closedir);
  if (threads == nullptr) return errno != ENOENT;
  while (const dirent* const entry = ::readdir(threads.get())) {
    if (entry->d_name[0] == '.') continue;
    const char state = state_of(folder, entry->d_name);
    if (state != 0 && std::strchr("TtZXx", state) == nullptr) return true;  // not stopped, and not dead
  }
  return false;
}

uint64_t KernelWrite::bytes_written() { return bytes_written_so_far.load(std::memory_order_relaxed); }

}  // namespace ddl
