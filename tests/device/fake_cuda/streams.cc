// Streams and events, as they are called by the host. A handle that was destroyed is an error and a violation.
#include <string>

#include "driver.h"

namespace fake {

FAKE_EXPORT int cuStreamCreateWithPriority(void** handle, unsigned flags, int) {
  Call call("cuStreamCreateWithPriority", Call::Needs::kContext);
  if (call.ended) return call.code;
  if (flags > kStreamNonBlocking) return kInvalidValue;
  const auto stream = call.driver->add_stream(call.context, flags != kStreamNonBlocking, "");
  call.driver->streams[stream->handle] = stream;
  *handle = stream->handle;
  return kSuccess;
}

// What it has queued is run nevertheless.
FAKE_EXPORT int cuStreamDestroy_v2(void* handle) {
  Call call("cuStreamDestroy_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  if (reinterpret_cast<uintptr_t>(handle) <= kPerThreadStream) return kInvalidHandle;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  if (stream->capture != nullptr) stream->capture->invalidated = true;
  call.driver->streams.erase(handle);
  return kSuccess;
}

FAKE_EXPORT int cuStreamQuery(void* handle) {
  Call call("cuStreamQuery", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(handle);
  if (stream == nullptr) return call.code;
  if (stream->capture != nullptr) {
    stream->capture->invalidated = true;
    return kCaptureUnsupported;
  }
  if (const int code = call.driver->unsafe_call(*call.thread)) return code;
  if (const int code = call.driver->capture_of_legacy(*stream)) return code;
  Clock clock;
  if (!call.driver->done(*stream, &clock)) return kNotReady;
  call.thread->clock.join(clock);
  return kSuccess;
}

FAKE_EXPORT int cuStreamWaitEvent(void* stream_handle, void* event_handle, unsigned) {
  Call call("cuStreamWaitEvent", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(stream_handle);
  const std::shared_ptr<Event> event = stream == nullptr ? nullptr : call.event(event_handle);
  if (event == nullptr) return call.code;
  if (event->capture != nullptr && stream->capture == nullptr) {
    if (event->capture->ended) return kInvalidValue;
    if (const int code = call.driver->capture_of_legacy(*stream)) return code;
    stream->capture = event->capture;  // the stream becomes a part of the graph
    stream->joined = false;
  }
  if (stream->capture != nullptr && stream->capture == event->capture && event->stream != stream) {
    event->stream->joined = true;
    stream->joined = false;
  }
  if (stream->capture != nullptr) {
    if (stream->capture != event->capture && event->recorded != nullptr) {
      stream->capture->invalidated = true;
      return kCaptureIsolation;
    }
    return stream->capture->invalidated ? kCaptureInvalidated : kSuccess;
  }
  auto command = std::make_shared<Marker>(call.entry);
  if (event->recorded != nullptr) command->after.push_back(event->recorded);
  return call.enqueue(stream, std::move(command));
}

FAKE_EXPORT int cuEventCreate(void** handle, unsigned) {
  Call call("cuEventCreate", Call::Needs::kContext);
  if (call.ended) return call.code;
  auto event = std::make_shared<Event>();
  event->number = ++call.driver->numbers;
  event->context = call.context;
  *handle = reinterpret_cast<void*>(0x8000000 + 16 * event->number);
  call.driver->events[*handle] = std::move(event);
  return kSuccess;
}

FAKE_EXPORT int cuEventRecord(void* event_handle, void* stream_handle) {
  Call call("cuEventRecord", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Stream> stream = call.stream(stream_handle);
  const std::shared_ptr<Event> event = stream == nullptr ? nullptr : call.event(event_handle);
  if (event == nullptr) return call.code;
  if (event->context != stream->context) return kInvalidHandle;
  auto command = std::make_shared<Marker>(call.entry);
  const int code = call.enqueue(stream, command);
  if (code != kSuccess) return code;
  event->capture = stream->capture;
  event->stream = stream->capture != nullptr ? stream : nullptr;
  event->recorded = stream->capture != nullptr ? nullptr : std::move(command);
  return kSuccess;
}

FAKE_EXPORT int cuEventQuery(void* handle) {
  Call call("cuEventQuery", Call::Needs::kContext);
  if (call.ended) return call.code;
  const std::shared_ptr<Event> event = call.event(handle);
  if (event == nullptr) return call.code;
  if (event->capture != nullptr) {
    event->capture->invalidated = true;
    return kCapturedEvent;
  }
  if (const int code = call.driver->unsafe_call(*call.thread)) return code;
  if (event->recorded == nullptr) return kSuccess;
  if (event->recorded->state != Command::State::kDone) return kNotReady;
  call.thread->clock.join(event->recorded->clock);
  return kSuccess;
}

FAKE_EXPORT int cuEventDestroy_v2(void* handle) {
  Call call("cuEventDestroy_v2", Call::Needs::kContext);
  if (call.ended) return call.code;
  if (call.event(handle) == nullptr) return call.code;
  call.driver->events.erase(handle);
  return kSuccess;
}

}  // namespace fake
