// One operation of one rank: what it reads and writes, and the two kernels that a stream runs for it.
//
// The first brings the rank's values to where the others find them; it can always be run, so that ranks do not wait
// for each other's order within a group. The second can be run when all ranks have done that, and computes the
// result. It can be run, too, when that will never happen: an abort, another operation there, or a deadline. The
// memory that it writes then gets garbage.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "abi.h"
#include "communicator.h"

struct FakeKernel;

namespace fake_nccl {

enum class Kind { kReduceScatter, kAllGather, kAllReduce };

// As the caller gives it. `count` is the caller's: of what a rank has in a reduce-scatter's result, of what it brings
// to an all-gather, of all in an all-reduce.
struct Request {
  const char* entry;
  Kind kind;
  const void* from;
  void* to;
  size_t count;
  int type, op;
  void* stream;
};

class Operation {
 public:
  Operation(std::shared_ptr<Communicator> communicator, const Request& request);
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  // What the caller did wrong; empty: nothing.
  std::string refusal() const;
  // Gives it its number, and tells the other ranks. With the communicator's mutex held.
  void announce(uint64_t barrier);

  FakeKernel bringing(const std::shared_ptr<Operation>& self) const;
  FakeKernel taking(const std::shared_ptr<Operation>& self) const;

  const Request request;
  const std::shared_ptr<Communicator> communicator;
  uint64_t number = 0;
  // How far each communicator of this device was when this was launched, by its id; and the latest other one.
  std::map<uint64_t, uint64_t> launched_before;
  uint64_t other_communicator = 0, other_number = 0;

 private:
  bool can_bring() const;
  void bring(const char* from);
  bool can_take();
  void take(const char* from, char* to);
  void compute(char* to);
  void garbage(char* to) const;

  bool over() const { return communicator->aborted.load() || communicator->broken.load() != kSuccess; }
  bool same(const Header& other) const;
  // The rank that hinders it, with what is to be said of it; empty: all ranks have brought what they should.
  std::string hindrance(bool late, bool* waits) const;
  std::string order() const;
  std::string text() const;

  size_t from_bytes() const;
  size_t to_bytes() const;

  uint64_t barrier_ = 0;                            // this operation has ended before this begins
  std::chrono::steady_clock::time_point deadline_;  // none, until it was first asked whether it can be run
};

}  // namespace fake_nccl
