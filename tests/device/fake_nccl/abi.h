// The numbers and types of NCCL's ABI that the fake plays: those of nccl.h, which do not change.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_nccl {

constexpr int kSuccess = 0;
constexpr int kUnhandledCudaError = 1;
constexpr int kSystemError = 2;
constexpr int kInternalError = 3;
constexpr int kInvalidArgument = 4;
constexpr int kInvalidUsage = 5;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;

enum class Type { kInt8, kUint8, kInt32, kUint32, kInt64, kUint64, kFloat16, kFloat32, kFloat64, kBfloat16 };
constexpr int kTypes = 10;
enum class Operator { kSum, kProd, kMax, kMin, kAvg };
constexpr int kOperators = 5;

struct UniqueId {
  char internal[128];
};

// What version 2.17 knows of it, which is what later versions begin with.
struct Config {
  size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
};
static_assert(sizeof(Config) == 40, "as nccl.h lays it out");

constexpr unsigned kMagic = 0xcafebeef;
constexpr int kUndefined = INT_MIN;  // of a field that is not set

}  // namespace fake_nccl
