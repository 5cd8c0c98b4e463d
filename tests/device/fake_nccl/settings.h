// What the environment says: __init__.py writes it, and explains it to tests.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

namespace fake_nccl {

struct Settings {
  int version;
  std::chrono::milliseconds launch;  // how long a launch waits for one of another thread, so that they meet
  bool eager;                        // a communicator that does not block queues its first operation at once, too
  bool notices;                      // an abort is an error on the other ranks; otherwise they know nothing of it
  bool ordered_threads;              // launches of two threads on a device need an order that the ledger knows
  bool shared_gpus;                  // NCCL_MULTI_RANK_GPU_ENABLE
  uint64_t host;                     // a number for the host's name
  std::string folder;                // where ranks meet
};

// Read once in a process.
const Settings& settings();

// Of every wait for another rank that begins now; the test may change it.
std::chrono::milliseconds patience();

// Calls of an entry: counted, and refused if the test has said so. 0: it may go on.
int admit(const char* entry);

}  // namespace fake_nccl
