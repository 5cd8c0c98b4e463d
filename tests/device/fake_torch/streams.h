// Which device and which stream a thread uses now; streams, and events.
#pragma once

#include <c10/core/Stream.h>

#include <cstdint>
#include <vector>

namespace fake_torch {

constexpr c10::DeviceType kFake = c10::DeviceType::PrivateUse1;

int current_device();
void set_current_device(int device);
c10::Stream current_stream(int device);
inline c10::Stream current_stream() { return current_stream(current_device()); }

// The driver's handle of a stream. The default stream is 0 for torch, and the legacy stream, 1, for the driver.
inline void* handle_of(c10::StreamId id) { return reinterpret_cast<void*>(id == 0 ? intptr_t{1} : intptr_t{id}); }
inline void* handle_of(const c10::Stream& stream) { return handle_of(stream.id()); }

// Streams of this device that torch has used: the default one is among them.
std::vector<c10::StreamId> known_streams(int device);

// Blocks the host until the stream has done all that it has, and lets this thread know of it.
void synchronize(const c10::Stream& stream);
// How often the host has done so: by itself, or in an operation that has to (a copy to pageable memory, say).
int64_t host_waits();

void forget_streams();

}  // namespace fake_torch
