// Captures of graphs: what a stream queues meanwhile is no work, and what other threads call may spoil the capture.
#include <algorithm>

#include "driver.h"

namespace fake {

// A thread's own mode decides, and the capture's: GLOBAL heeds the captures of all threads that are GLOBAL,
// THREAD_LOCAL its own only, RELAXED none.
int Driver::unsafe_call(const Thread& thread) {
  int code = kSuccess;
  for (const auto& capture : captures) {
    const bool own = capture->thread == thread.number;
    const bool heeds = own ? capture->mode != kCaptureRelaxed && thread.capture_mode != kCaptureRelaxed
                           : capture->mode == kCaptureGlobal && thread.capture_mode == kCaptureGlobal;
    if (!heeds) continue;
    capture->invalidated = true;
    code = kCaptureUnsupported;
  }
  return code;
}

// Work on the legacy stream would wait for a stream that is captured, which a graph cannot say.
int Driver::capture_of_legacy(const Stream& stream) {
  if (!stream.legacy) return kSuccess;
  for (const auto& other : all_streams) {
    if (other->capture == nullptr || !other->blocking || other->context != stream.context) continue;
    other->capture->invalidated = true;
    return kCaptureImplicit;
  }
  return kSuccess;
}

FAKE_EXPORT int cuStreamIsCapturing(void* handle, int* status) {
  Call call("cuStreamIsCapturing", Call::Needs::kContext);
  if (call.ended && call.code != 0 && call.driver != nullptr && call.code == call.driver->failed) {
    *status = kCaptureNone;  // a call that asks nothing of the GPU may not know that it has failed
    return kSuccess;
  }
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  if (stream->legacy) {
    for (const auto& other : call.driver->all_streams) {
      const bool captured = other->blocking && other->capture != nullptr;
      if (captured && other->context == stream->context) return kCaptureImplicit;  // which spoils nothing
    }
  }
  *status = stream->capture == nullptr     ? kCaptureNone
            : stream->capture->invalidated ? kCaptureWasInvalidated
                                           : kCaptureActive;
  return kSuccess;
}

FAKE_EXPORT int cuThreadExchangeStreamCaptureMode(int* mode) {
  Call call("cuThreadExchangeStreamCaptureMode", Call::Needs::kDriver);
  if (call.ended) return call.code;
  if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kInvalidValue;
  std::swap(*mode, call.thread->capture_mode);
  return kSuccess;
}

FAKE_EXPORT void fake_capture_begin(void* handle, int mode) {
  Call call("fake_capture_begin", Call::Needs::kContext);
  if (call.driver == nullptr) return;
  const std::shared_ptr<Stream> stream = !call.ended ? call.stream(handle) : nullptr;
  if (stream == nullptr || stream->legacy || stream->capture != nullptr) {
    call.driver->complain("fake_capture_begin: no such stream, or it cannot be captured now");
    return;
  }
  stream->capture = std::make_shared<Capture>();
  stream->capture->thread = call.thread->number;
  stream->capture->mode = mode;
  call.driver->captures.push_back(stream->capture);
}

FAKE_EXPORT int fake_capture_end(void* handle) {
  Call call("fake_capture_end", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) {
    call.driver->complain("fake_capture_end: nothing is captured on this stream");
    return kCaptureInvalidated;
  }
  bool joined = true;
  for (const auto& other : call.driver->all_streams) {
    if (other->capture != capture) continue;
    joined &= other == stream || other->joined;
    other->capture.reset();
    other->joined = true;
  }
  capture->ended = true;
  auto& captures = call.driver->captures;
  captures.erase(std::remove(captures.begin(), captures.end(), capture), captures.end());
  return capture->invalidated ? kCaptureInvalidated : joined ? kSuccess : kCaptureUnjoined;
}

}  // namespace fake
