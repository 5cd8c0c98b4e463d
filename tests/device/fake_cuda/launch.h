// What another library of the tests queues on a stream of the fake: it stands for a kernel, which has no source here.
//
// C's types only, since that library finds `fake_launch` by its name. See launch.cc.
#pragma once

#include <cstddef>
#include <cstdint>

struct FakeKernel {
  const char* name;  // for the ledger; it lives as long as the library does

  // Whether it can be run, asked when it is the head of its queue; null: it can. Called under the driver's lock,
  // again and again: it calls nothing of the driver, and waits for nothing.
  int (*ready)(void* argument);
  // Called without the driver's lock, with the places in memory of what it reads and writes; null: there is
  // nothing, or no memory any more.
  void (*run)(void* argument, const char* from, char* to);
  // The argument is needed no more: it has been run, or never will be. It calls nothing of the driver.
  void (*release)(void* argument);
  void* argument;

  // Device memory, or registered host memory. Without bytes: none.
  uint64_t from;
  size_t from_bytes;
  uint64_t to;
  size_t to_bytes;
};

// Queues the kernels on a stream of the current context, one behind the other, and nothing between them. Whether that
// succeeds or not, each is released in the end.
using FakeLaunch = int (*)(void* stream, const FakeKernel* kernels, size_t count);
