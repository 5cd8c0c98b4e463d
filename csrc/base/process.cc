#include "base/process.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace ddl {

namespace {

std::atomic<int> cached{0};

void forget() { cached.store(0, std::memory_order_relaxed); }

}  // namespace

int process_id() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, forget);
  int id = cached.load(std::memory_order_relaxed);
  if (id == 0 || registered != 0) {
    id = ::getpid();
    cached.store(id, std::memory_order_relaxed);
  }
  return id;
}

}  // namespace ddl
