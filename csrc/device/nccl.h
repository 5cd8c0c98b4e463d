// NCCL for the GPUs of one host, loaded when it is first wanted. This file and nccl.cc are all that names NCCL.
//
// A group is this process's part of a communicator of NCCL: one GPU for each rank of the host. It works in place on
// memory of its GPU, on a stream of its own. Calls of one group come in the same order on all of its ranks; NCCL
// wants that of all groups that use one GPU. Thread-safe; `abort` may come while another thread is in a call.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "base/clock.h"
#include "base/mutex.h"
#include "device/driver.h"
#include "device/gpu.h"
#include "reduce/dtype.h"

namespace ddl {

struct NcclTable;

class Nccl {
 public:
  // Loads the library; empty: the copy that the process has already, else `otherwise`, else libnccl.so.2. Throws
  // kResourceError.
  Nccl(const std::string& library, const std::string& otherwise);

  int version() const;  // 10000 * major + 100 * minor + patch
  // What the ranks of a new group must all have: 128 bytes.
  std::string make_id() const;
  // Whether NCCL knows the type, and combines it by the operator as we do.
  static bool knows(DType dtype, ReduceOp op);

 private:
  friend class NcclGroup;
  std::shared_ptr<const NcclTable> table_;
};

class NcclGroup {
 public:
  // Collective over the ranks of the group; waits for at most `patience`. Throws kResourceError.
  NcclGroup(Nccl nccl, const std::string& id, int size, int rank, int device, Nanoseconds patience);
  ~NcclGroup();
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;

  StreamHandle stream() const { return stream_; }
  // What the group gets from now on comes behind what `producer` has now. Throws kInvalidState if a graph is being
  // captured there.
  void follow(StreamHandle producer);
  // `data` has size * count elements. Of the parts of `count`, this rank's own is combined over the ranks, in place.
  void reduce_scatter(DevicePointer data, uint64_t count, DType dtype, ReduceOp op);
  // The reverse: this rank's own part goes to all others.
  void all_gather(DevicePointer data, uint64_t count, DType dtype);
  // What NCCL has found wrong since; "": nothing, or a call is under way, which finds that out itself.
  std::string problem();
  // What is queued ends, with undefined results, and the group cannot be used any more. Idempotent.
  void abort();

 private:
  template <typename Body>
  void call(const char* name, Body body);
  void await(const char* name, int code);
  void check_usable() const DDL_REQUIRES(mutex_);
  [[noreturn]] void fail(const char* name, int code) const;

  const Nccl nccl_;
  const std::shared_ptr<Gpu> gpu_;
  const Driver& driver_;
  const int size_, rank_;
  const Nanoseconds patience_;
  StreamHandle stream_ = nullptr;
  Mutex mutex_;
  std::atomic<bool> aborted_{false}, calling_{false};
  std::atomic<void*> communicator_{nullptr};
};

}  // namespace ddl
