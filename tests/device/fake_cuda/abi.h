// The numbers and types of the driver's ABI that the fake plays: those of cuda.h, which do not change.
//
// No header of CUDA is used, so that the fake builds on any machine. Handles are opaque: the fake gives numbers that
// it never gives twice, so that a handle that was destroyed is noticed.
#pragma once

#include <cstddef>
#include <cstdint>

#define FAKE_EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

using DevicePointer = uint64_t;
using HostFunction = void (*)(void*);

constexpr int kSuccess = 0;
constexpr int kInvalidValue = 1;
constexpr int kOutOfMemory = 2;
constexpr int kNotInitialized = 3;
constexpr int kDeinitialized = 4;
constexpr int kNoDevice = 100;
constexpr int kInvalidDevice = 101;
constexpr int kInvalidContext = 201;
constexpr int kInvalidHandle = 400;
constexpr int kNotReady = 600;
constexpr int kContextIsDestroyed = 709;
constexpr int kAlreadyRegistered = 712;
constexpr int kNotRegistered = 713;
constexpr int kNotPermitted = 800;
constexpr int kNotSupported = 801;
constexpr int kCaptureUnsupported = 900;
constexpr int kCaptureInvalidated = 901;
constexpr int kCaptureUnjoined = 904;
constexpr int kCaptureIsolation = 905;
constexpr int kCaptureImplicit = 906;
constexpr int kCapturedEvent = 907;
constexpr int kUnknown = 999;

constexpr unsigned kStreamNonBlocking = 1;
constexpr uintptr_t kLegacyStream = 1, kPerThreadStream = 2;

constexpr int kCaptureGlobal = 0, kCaptureThreadLocal = 1, kCaptureRelaxed = 2;
constexpr int kCaptureNone = 0, kCaptureActive = 1, kCaptureWasInvalidated = 2;

constexpr unsigned kWaitGreaterOrEqual = 0, kWaitEqual = 1, kWaitAnd = 2, kWaitNor = 3;
constexpr unsigned kWriteWithoutBarrier = 1;

constexpr int kMemoryHost = 1, kMemoryDevice = 2;

}  // namespace fake
