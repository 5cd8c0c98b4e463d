// The fake driver as this device uses it: a table of its functions, one context a device, and waits on the host.
//
// The library is the one that DDL's core has loaded: dlopen of the same path gives the same library. Contexts are the
// primary ones, as torch uses them. A test may reset the driver; `restart` forgets all that belonged to the former
// one, and whatever still holds a part of it sees by `epoch` that it is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

namespace fake_torch {

constexpr int kNotReady = 600;
constexpr int kMostDevices = 8;

struct Table {
  int (*cuInit)(unsigned);
  int (*cuDeviceGetCount)(int*);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuCtxPushCurrent_v2)(void*);
  int (*cuCtxPopCurrent_v2)(void**);
  int (*cuStreamCreateWithPriority)(void**, unsigned, int);
  int (*cuStreamQuery)(void*);
  int (*cuStreamWaitEvent)(void*, void*, unsigned);
  int (*cuStreamIsCapturing)(void*, int*);
  int (*cuEventCreate)(void**, unsigned);
  int (*cuEventRecord)(void*, void*);
  int (*cuEventQuery)(void*);
  int (*cuEventDestroy_v2)(void*);
  int (*cuMemcpyDtoHAsync_v2)(void*, uint64_t, size_t, void*);
  int (*cuMemcpyHtoDAsync_v2)(uint64_t, const void*, size_t, void*);
  int (*cuMemAlloc_v2)(uint64_t*, size_t);
  int (*cuMemHostRegister_v2)(void*, size_t, unsigned);
  int (*cuPointerGetAttributes)(unsigned, int*, void**, uint64_t);
  int (*cuStreamWriteValue32_v2)(void*, uint64_t, uint32_t, unsigned);  // null: an older driver
  int (*fake_steps)();
  int (*fake_step)(int);
  void (*ddl_ledger_release)(const void*);
  void (*ddl_ledger_acquire)(const void*);
};

void load(const char* path);
const Table& driver();
void check(int code, const char* call);
#define FAKE_CALL(name, ...) ::fake_torch::check(::fake_torch::driver().name(__VA_ARGS__), #name)

int device_count() noexcept;
uint64_t epoch();
void restart();

// The device's context is current in this thread, until the end of the scope.
class Pushed {
 public:
  explicit Pushed(int device);
  ~Pushed();
  Pushed(const Pushed&) = delete;
  Pushed& operator=(const Pushed&) = delete;
};

// Blocks the host until the condition holds. In mode "steps" it runs commands meanwhile. A device that has failed
// raises. The context is current.
void wait_until(const std::function<bool()>& holds);

// Whether a query has said yes; other answers than "not ready" raise. The asking thread knows then, for the ledger,
// what has been done.
bool answered(int code, const char* call);

}  // namespace fake_torch
