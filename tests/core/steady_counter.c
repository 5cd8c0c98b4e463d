// Preloaded into a rank (LD_PRELOAD): counts calls of allocators, mutexes and system calls that come from the code
// watched, and passes them on. Who called is told by the return address, so CPython's own calls do not count.
//
// All arguments go on as machine words, which is how the ABIs of Linux pass integers and pointers, also to functions
// of variable arguments. No header that declares what is defined here is included.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/futex.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>

typedef long (*Function)(long, long, long, long, long, long);
enum Kind { kAllocation, kMutex, kSystemCall, kWakeUp };

struct Counter {
  const char* name;
  enum Kind kind;
  long calls;
};

static struct {
  uintptr_t begin, end;
} watched[64];
static int ranges;

static int is_watched(void* caller) {
  const uintptr_t at = (uintptr_t)caller;
  const int n = __atomic_load_n(&ranges, __ATOMIC_ACQUIRE);
  for (int i = 0; i < n; ++i) {
    if (watched[i].begin <= at && at < watched[i].end) return 1;
  }
  return 0;
}

static void count(struct Counter* counter, void* caller) {
  if (is_watched(caller)) __atomic_fetch_add(&counter->calls, 1, __ATOMIC_RELAXED);
}

#define COUNTED(kind, name)                                                \
  static struct Counter counter_##name = {#name, kind, 0};                 \
  long name(long a, long b, long c, long d, long e, long f) {              \
    static Function next;                                                  \
    if (next == NULL) next = (Function)(uintptr_t)dlsym(RTLD_NEXT, #name); \
    count(&counter_##name, __builtin_return_address(0));                   \
    return next(a, b, c, d, e, f);                                         \
  }

COUNTED(kAllocation, strdup)
COUNTED(kMutex, pthread_mutex_lock)
COUNTED(kSystemCall, close)
COUNTED(kSystemCall, eventfd)
COUNTED(kSystemCall, eventfd_read)
COUNTED(kSystemCall, eventfd_write)
COUNTED(kSystemCall, fcntl)
COUNTED(kSystemCall, fstat)
COUNTED(kSystemCall, fstatfs)
COUNTED(kSystemCall, ftruncate)
COUNTED(kSystemCall, getsockopt)
COUNTED(kSystemCall, ioctl)
COUNTED(kSystemCall, madvise)
COUNTED(kSystemCall, memfd_create)
COUNTED(kSystemCall, mmap)
COUNTED(kSystemCall, munmap)
COUNTED(kSystemCall, poll)
COUNTED(kSystemCall, ppoll)
COUNTED(kSystemCall, process_vm_readv)
COUNTED(kSystemCall, process_vm_writev)
COUNTED(kSystemCall, readv)
COUNTED(kSystemCall, recv)
COUNTED(kSystemCall, sched_yield)
COUNTED(kSystemCall, send)
COUNTED(kSystemCall, sendmsg)
COUNTED(kSystemCall, setsockopt)
COUNTED(kSystemCall, usleep)

// Those that are a sleep on a futex which somebody ended, and not its time limit, count as "woken", too.
static struct Counter counter_syscall = {"syscall", kSystemCall, 0}, counter_woken = {"woken", kWakeUp, 0};
long syscall(long a, long b, long c, long d, long e, long f, long g) {
  static long (*next)(long, long, long, long, long, long, long);
  if (next == NULL) next = (long (*)(long, long, long, long, long, long, long))(uintptr_t)dlsym(RTLD_NEXT, "syscall");
  void* const caller = __builtin_return_address(0);
  count(&counter_syscall, caller);
  const long result = next(a, b, c, d, e, f, g);
  if (a == SYS_futex && c == FUTEX_WAIT && result == 0) count(&counter_woken, caller);
  return result;
}

// Looking for the next malloc would need malloc, so these go to glibc's own names.
extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

#define ALLOCATOR(name, parameters, arguments, real)              \
  static struct Counter counter_##name = {#name, kAllocation, 0}; \
  void* name parameters {                                         \
    count(&counter_##name, __builtin_return_address(0));          \
    return real arguments;                                        \
  }

ALLOCATOR(malloc, (size_t n), (n), __libc_malloc)
ALLOCATOR(calloc, (size_t n, size_t each), (n, each), __libc_calloc)
ALLOCATOR(realloc, (void* old, size_t n), (old, n), __libc_realloc)
ALLOCATOR(memalign, (size_t to, size_t n), (to, n), __libc_memalign)
ALLOCATOR(aligned_alloc, (size_t to, size_t n), (to, n), __libc_memalign)

static struct Counter counter_posix_memalign = {"posix_memalign", kAllocation, 0};
int posix_memalign(void** out, size_t to, size_t n) {
  count(&counter_posix_memalign, __builtin_return_address(0));
  *out = __libc_memalign(to, n);
  return *out == NULL ? 12 /* ENOMEM */ : 0;
}

static struct Counter* const counters[] = {
    &counter_aligned_alloc,
    &counter_calloc,
    &counter_close,
    &counter_eventfd,
    &counter_eventfd_read,
    &counter_eventfd_write,
    &counter_fcntl,
    &counter_fstat,
    &counter_fstatfs,
    &counter_ftruncate,
    &counter_getsockopt,
    &counter_ioctl,
    &counter_madvise,
    &counter_malloc,
    &counter_memalign,
    &counter_memfd_create,
    &counter_mmap,
    &counter_munmap,
    &counter_poll,
    &counter_posix_memalign,
    &counter_ppoll,
    &counter_process_vm_readv,
    &counter_process_vm_writev,
    &counter_pthread_mutex_lock,
    &counter_readv,
    &counter_recv,
    &counter_realloc,
    &counter_sched_yield,
    &counter_send,
    &counter_sendmsg,
    &counter_setsockopt,
    &counter_strdup,
    &counter_syscall,
    &counter_usleep,
    &counter_woken,
};

// --- for the test ---

// Counts what is called from addresses in [begin, end) from now on. Not thread-safe.
void steady_watch(uintptr_t begin, uintptr_t end) {
  watched[ranges].begin = begin;
  watched[ranges].end = end;
  __atomic_store_n(&ranges, ranges + 1, __ATOMIC_RELEASE);
}

int steady_functions(void) { return (int)(sizeof counters / sizeof counters[0]); }
const char* steady_name(int i) { return counters[i]->name; }
int steady_kind(int i) { return (int)counters[i]->kind; }
long steady_calls(int i) { return __atomic_load_n(&counters[i]->calls, __ATOMIC_RELAXED); }
