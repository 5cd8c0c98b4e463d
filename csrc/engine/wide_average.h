// An average of integers of less than 64 bits on the host, added up as int64: 200 and 100 as uint8 would give 44 / 2.
//
// The operation reads and writes wide copies of the arrays; `finish` writes its result to the array of the caller.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "engine/stage.h"
#include "reduce/dtype.h"

namespace ddl {

class WideAverage final : public Stage {
 public:
  // `in` and `out`: `in_count` and `out_count` numbers of the type; null: the operation has no such array. They may
  // be the same. `out` is there until `finish`.
  WideAverage(DType dtype, const void* in, uint64_t in_count, void* out, uint64_t out_count);

  DType dtype() const { return dtype_; }
  char* in() { return wide_in_.empty() ? nullptr : reinterpret_cast<char*>(wide_in_.data()); }
  char* out() { return in_place_ ? in() : reinterpret_cast<char*>(wide_out_.data()); }

  bool arrived(uint64_t) override { return true; }
  void check() override {}
  void left(uint64_t) override {}
  void abandon() override {}
  void follow(bool) override {}
  void cancel() override {}
  bool ended() const override { return true; }
  void sleep(Nanoseconds) override {}
  void finish() override;
  bool writes_in_finish() const override { return true; }

 private:
  const DType dtype_;
  void* const out_;
  const uint64_t out_count_;
  const bool in_place_;
  std::vector<std::int64_t> wide_in_, wide_out_;
  std::once_flag finished_;
};

}  // namespace ddl
