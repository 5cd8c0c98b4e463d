// Locks that clang checks: a member says which lock guards it (DDL_GUARDED_BY), a function which lock its caller
// holds (DDL_REQUIRES). `make lint` runs clang's thread-safety analysis. Other compilers ignore the annotations.
#pragma once

#include <sched.h>

#include <atomic>
#include <mutex>

#if defined(__clang__)
#define DDL_THREAD_SAFETY(attribute) __attribute__((attribute))
#else
#define DDL_THREAD_SAFETY(attribute)
#endif
#define DDL_CAPABILITY(name) DDL_THREAD_SAFETY(capability(name))
#define DDL_SCOPED_CAPABILITY DDL_THREAD_SAFETY(scoped_lockable)
#define DDL_GUARDED_BY(lock) DDL_THREAD_SAFETY(guarded_by(lock))
#define DDL_REQUIRES(lock) DDL_THREAD_SAFETY(requires_capability(lock))
#define DDL_ACQUIRE(...) DDL_THREAD_SAFETY(acquire_capability(__VA_ARGS__))
#define DDL_TRY_ACQUIRE(...) DDL_THREAD_SAFETY(try_acquire_capability(__VA_ARGS__))
#define DDL_NOT_CHECKED DDL_THREAD_SAFETY(no_thread_safety_analysis)
#define DDL_RELEASE(...) DDL_THREAD_SAFETY(release_capability(__VA_ARGS__))

namespace ddl {

class DDL_CAPABILITY("mutex") Mutex {
 public:
  void lock() DDL_ACQUIRE() { mutex_.lock(); }
  void unlock() DDL_RELEASE() { mutex_.unlock(); }

 private:
  std::mutex mutex_;
};

// A lock without a system call. For a few instructions, and for threads that seldom meet.
class DDL_CAPABILITY("mutex") SpinLock {
 public:
  void lock() DDL_ACQUIRE() {
    while (held_.exchange(true, std::memory_order_acquire)) {
      while (held_.load(std::memory_order_relaxed)) ::sched_yield();
    }
  }
  void unlock() DDL_RELEASE() { held_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> held_{false};
};

// What one thread at a time may do. Nobody waits for it: a thread that does not get it does something else.
class DDL_CAPABILITY("role") Role {
 public:
  bool enter() DDL_TRY_ACQUIRE(true) { return !taken_.exchange(true, std::memory_order_seq_cst); }
  void leave() DDL_RELEASE() { taken_.store(false, std::memory_order_seq_cst); }
  bool taken() const { return taken_.load(std::memory_order_seq_cst); }

 private:
  std::atomic<bool> taken_{false};
};

// Holds a lock as long as it lives.
template <typename Lockable>
class DDL_SCOPED_CAPABILITY Lock {
 public:
  explicit Lock(Lockable& lockable) DDL_ACQUIRE(lockable) : lockable_(lockable) { lockable_.lock(); }
  ~Lock() DDL_RELEASE() { lockable_.unlock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

 private:
  Lockable& lockable_;
};

}  // namespace ddl
