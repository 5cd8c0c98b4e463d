#include "memory/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>

#include "base/error.h"
#include "base/process.h"

namespace ddl {

namespace {

constexpr size_t kPage = 4096;
// Address space costs nothing, and a virtual machine may get more memory after this process has started.
constexpr size_t kLeastDefault = size_t{256} << 30;
// Blocks of this size or more give their pages back when freed. Smaller ones are likely to be used again soon.
constexpr size_t kReturnPages = size_t{1} << 20;

std::atomic<size_t> configured_bytes{0};
std::atomic<bool> created{false};

size_t physical_bytes() {
  return static_cast<size_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
}

// Where address space is limited (ulimit -v), it is as large as the memory that there is now: others map it, too.
size_t default_bytes() {
  rlimit limit{};
  const bool limited = ::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  return limited ? physical_bytes() : std::max(physical_bytes(), kLeastDefault);
}

}  // namespace

Arena& Arena::process() {
  // Never destroyed: arrays may live longer than the statics of this library. The kernel takes the memory back.
  static Arena* arena = new Arena(configured_bytes.load());
  return *arena;
}

bool Arena::configure(size_t bytes) {
  if (created.load()) return false;
  configured_bytes.store(bytes);
  return true;
}

Arena::Arena(size_t bytes)
    : size_(round_up(bytes != 0 ? bytes : default_bytes(), kPage)),
      configured_(bytes != 0),
      owner_pid_(process_id()),
      parts_(size_) {
  created.store(true);
  fd_.reset(::memfd_create("ddl", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd_) throw_errno("memfd_create");
  if (::ftruncate(fd_.get(), static_cast<off_t>(size_)) != 0) throw_errno("ftruncate of the shared arena");
  if (::fcntl(fd_.get(), F_ADD_SEALS, kArenaSeals) != 0) throw_errno("sealing the size of the shared arena");
  void* base = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd_.get(), 0);
  if (base == MAP_FAILED) {
    throw_errno("mmap of " + std::to_string(size_ >> 20) + " MiB of address space for shared buffers",
                "set DDL_SHM_SIZE to what the job needs (e.g. DDL_SHM_SIZE=2G) or raise 'ulimit -v'");
  }
  ::madvise(base, size_, MADV_DONTDUMP);
  base_ = static_cast<char*>(base);
  const Lock lock(mutex_);
  if (!parts_.take(kArenaRootBytes, kPage)) throw Error(ErrorKind::kResourceError, "DDL_SHM_SIZE is below 4 KiB");
}

void* Arena::allocate(size_t bytes, size_t alignment) {
  if (process_id() != owner_pid_) {
    throw Error(ErrorKind::kInvalidState,
                "a forked child cannot allocate DDL's shared memory: it belongs to the parent (pid " +
                    std::to_string(owner_pid_) + "); start workers with 'spawn' or 'forkserver'");
  }
  // Whole cache lines, so that two owners never share a line. Large blocks take whole pages.
  const size_t unit = bytes >= kReturnPages ? kPage : 64;
  alignment = std::max(alignment, unit);
  const bool large = bytes >= kReturnPages && !configured_;
  const size_t most = large ? std::min(size_, physical_bytes()) : size_;  // of now
  const Lock lock(mutex_);
  const bool possible = bytes <= most - std::min(most, parts_.used());  // so rounding up cannot overflow
  const size_t need = std::max(round_up(bytes, unit), unit);
  const std::optional<size_t> start = possible ? parts_.take(need, alignment) : std::nullopt;
  if (start) return base_ + *start;
  throw Error(ErrorKind::kResourceError, "shared memory is full: " + std::to_string(bytes) + " bytes wanted, " +
                                             std::to_string(parts_.used()) + " of " + std::to_string(most) +
                                             " in use; set DDL_SHM_SIZE to more");
}

void Arena::free(void* pointer) {
  if (pointer == nullptr || process_id() != owner_pid_) return;
  const Lock lock(mutex_);
  const size_t start = offset(pointer);
  const std::optional<size_t> bytes = parts_.give_back(start);
  if (!bytes) throw Error(ErrorKind::kInternalError, "free of a block that the arena did not give");
  if (*bytes >= kReturnPages) ::madvise(base_ + start, *bytes, MADV_REMOVE);
}

size_t Arena::used() const {
  const Lock lock(mutex_);
  return parts_.used();
}

}  // namespace ddl
