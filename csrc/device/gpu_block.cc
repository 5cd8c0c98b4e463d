#include "device/gpu_block.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/futex.h"
#include "device/slabs.h"

namespace ddl {

namespace {

constexpr Nanoseconds kPatience = 30 * kSecond;
constexpr Nanoseconds kNap = 50 * kMicrosecond;

}  // namespace

GpuBlock::GpuBlock(int device, uint64_t bytes)
    : gpu_(Gpu::of(device)), driver_(Driver::get()), bytes_(std::max<uint64_t>(bytes, 1)) {
  try {
    const Driver::Current current(driver_, gpu_->context());
    memory_ = driver_.allocate(bytes_);
  } catch (const DriverError& error) {
    throw gpu_->failure(error);
  }
}

// What a GPU that has failed, or does not answer, may still use stays where it is.
GpuBlock::~GpuBlock() {
  try {
    const Driver::Current current(driver_, gpu_->context());
    driver_.free(memory_);
    if (end_ != nullptr) driver_.destroy_event(end_);
    if (stream_ != nullptr) driver_.destroy_stream(stream_);
    if (staging_ != nullptr) Slabs::process().free(driver_, staging_);
  } catch (const Error&) {
    // The next call that uses the GPU says so.
  }
}

template <typename Queue>
void GpuBlock::copy(Queue queue) {
  try {
    const Driver::Current current(driver_, gpu_->context());
    if (stream_ == nullptr) stream_ = driver_.make_stream();
    if (end_ == nullptr) end_ = driver_.make_event();
    queue();
    driver_.record(end_, stream_);
    const Nanoseconds deadline = now_ns() + kPatience;
    while (!driver_.ended(end_)) {
      if (now_ns() > deadline) {
        throw Error(ErrorKind::kResourceError,
                    "GPU " + std::to_string(gpu_->device()) + " does not answer: a copy has not ended within 30 s");
      }
      nap(kNap);
    }
  } catch (const DriverError& error) {
    throw gpu_->failure(error);
  }
}

char* GpuBlock::staging() {
  const Driver::Current current(driver_, gpu_->context());
  if (staging_ == nullptr) staging_ = Slabs::process().allocate(driver_, bytes_).memory;
  return staging_;
}

void GpuBlock::write(const char* from) {
  std::memcpy(staging(), from, bytes_);
  copy([&] { driver_.copy_up(memory_, staging_, bytes_, stream_); });
}

void GpuBlock::read(char* to) {
  (void)staging();
  copy([&] { driver_.copy_down(staging_, memory_, bytes_, stream_); });
  std::memcpy(to, staging_, bytes_);
}

}  // namespace ddl
