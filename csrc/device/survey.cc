#include "device/survey.h"

#include <algorithm>
#include <array>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "device/gpu.h"
#include "device/slabs.h"
#include "device/words.h"

namespace ddl {

namespace {

constexpr size_t kInFlight = 4;  // pieces in one direction: the engine never waits for this process

Error silent(int device, const std::string& what, Nanoseconds patience) {
  return Error(ErrorKind::kResourceError, "GPU " + std::to_string(device) + " does not answer: " + what +
                                              " has not ended after " + std::to_string(patience / kMillisecond) +
                                              " ms");
}

// Copies in one direction, on a stream of their own. Each piece that is under way has a place on both sides.
class Flow {
 public:
  Flow(const Driver& driver, bool down, char* host, DevicePointer memory, uint64_t piece)
      : driver_(driver), down_(down), host_(host), memory_(memory), piece_(piece), stream_(driver.make_stream()) {
    for (EventHandle& event : ends_) event = driver.make_event();
  }
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  void fill() {
    for (; queued_ < ended_ + kInFlight; ++queued_) {
      const size_t place = queued_ % kInFlight;
      if (down_) {
        driver_.copy_down(host_ + place * piece_, memory_ + place * piece_, piece_, stream_);
      } else {
        driver_.copy_up(memory_ + place * piece_, host_ + place * piece_, piece_, stream_);
      }
      driver_.record(ends_[place], stream_);
    }
  }
  // Whether a piece has ended since the last call.
  bool take() {
    const uint64_t before = ended_;
    while (ended_ < queued_ && driver_.ended(ends_[ended_ % kInFlight])) ++ended_;
    if (ended_ != before) last_ = now_ns();
    return ended_ != before;
  }
  bool idle() const { return ended_ == queued_; }
  void begin() {
    first_ = ended_;
    begin_ = last_ = now_ns();
  }
  double bytes_per_s() const {
    const auto bytes = static_cast<double>((ended_ - first_) * piece_);
    return last_ > begin_ ? bytes * static_cast<double>(kSecond) / static_cast<double>(last_ - begin_) : 0.0;
  }
  StreamHandle stream() const { return stream_; }
  // When it is idle. There is no destructor for this: a GPU that has failed may still use all of it.
  void close() {
    for (EventHandle event : ends_) driver_.destroy_event(event);
    driver_.destroy_stream(stream_);
  }

 private:
  const Driver& driver_;
  const bool down_;
  char* const host_;
  const DevicePointer memory_;
  const uint64_t piece_;
  const StreamHandle stream_;
  std::array<EventHandle, kInFlight> ends_{};
  uint64_t queued_ = 0, ended_ = 0, first_ = 0;
  Nanoseconds begin_ = 0, last_ = 0;
};

class Measurement {
 public:
  Measurement(int device, const MeasurementLimits& limits) : device_(device), limits_(limits) {}

  MeasuredGpu run() {
    const Driver::Current current(driver_, driver_.context_of(device_));
    const size_t side = kInFlight * limits_.piece_bytes;
    Slabs& slabs = Slabs::process();
    const Slabs::Part part = slabs.allocate(driver_, 2 * side);
    const DevicePointer memory = driver_.allocate(2 * side);
    Flow down(driver_, true, part.memory, memory, limits_.piece_bytes);
    Flow up(driver_, false, part.memory + side, memory + side, limits_.piece_bytes);
    MeasuredGpu measured;
    const Slabs::Registration registration = slabs.registration();
    if (part.registered && registration.took > 0) {
      measured.registering = static_cast<double>(registration.bytes) * static_cast<double>(kSecond) /
                             static_cast<double>(registration.took);
    } else {
      measured.refusal = registration.refusal;
    }
    copy({&down});
    measured.down = down.bytes_per_s();
    copy({&up});
    measured.up = up.bytes_per_s();
    copy({&down, &up});
    measured.both_down = down.bytes_per_s();
    measured.both_up = up.bytes_per_s();
    measured.words_problem = words_problem(down.stream(), part.registered);
    down.close();
    up.close();
    driver_.free(memory);
    slabs.free(driver_, part.memory);
    return measured;
  }

 private:
  void copy(const std::vector<Flow*>& flows) {
    for (Flow* flow : flows) flow->fill();  // the first copies are slower: contexts and pages are warm afterwards
    drain(flows);
    for (Flow* flow : flows) flow->begin();
    const Nanoseconds until = now_ns() + limits_.sample;
    Nanoseconds moved = now_ns();
    for (Nanoseconds now = moved; now < until; now = now_ns()) {
      for (Flow* flow : flows) flow->fill();
      if (take(flows)) {
        moved = now;
      } else if (now - moved > limits_.patience) {
        break;
      }
    }
    drain(flows);
  }

  void drain(const std::vector<Flow*>& flows) {
    Nanoseconds moved = now_ns();
    while (!std::all_of(flows.begin(), flows.end(), [](const Flow* flow) { return flow->idle(); })) {
      const Nanoseconds now = now_ns();
      if (take(flows)) {
        moved = now;
      } else if (now - moved > limits_.patience) {
        throw silent(device_, "a copy of " + std::to_string(limits_.piece_bytes >> 10) + " KiB", limits_.patience);
      }
    }
  }

  static bool take(const std::vector<Flow*>& flows) {
    bool moved = false;
    for (Flow* flow : flows) moved |= flow->take();
    if (!moved) std::this_thread::yield();
    return moved;
  }

  std::string words_problem(StreamHandle stream, bool registered) {
    if (!driver_.has_words()) return "the driver is too old for it";
    if (!registered) return "memory of the host cannot be registered";
    Words& words = Words::process();
    const Words::Word word = words.take(driver_);
    if (word.address == 0) return "memory of the host cannot be registered";
    try {
      driver_.write_word(stream, word.address, word.base + 1);
    } catch (const DriverError& error) {
      if (error.fatal()) throw;
      words.give_back(word, 0);
      return error.what();
    }
    for (const Nanoseconds begin = now_ns(); !word.reached(1); std::this_thread::yield()) {
      if (now_ns() - begin > limits_.patience) throw silent(device_, "the write of a word", limits_.patience);
    }
    words.give_back(word, 1);
    return "";
  }

  const int device_;
  const MeasurementLimits limits_;
  const Driver& driver_ = Driver::get();
};

}  // namespace

DriverState survey_driver() {
  DriverState state;
  try {
    const Driver& driver = Driver::get();
    state.version = driver.version();
    state.count = driver.count();
  } catch (const DriverUnusable& error) {
    state.problem = error.why();
    state.missing = error.missing();
  } catch (const Error& error) {
    state.problem = error.what();
  }
  return state;
}

DeviceDescription describe_gpu(int device) {
  try {
    return Driver::get().describe(device);
  } catch (const DriverError& error) {
    throw Gpu::failure_of(device, error);
  }
}

MeasuredGpu measure_gpu(int device, const MeasurementLimits& limits) {
  try {
    return Measurement(device, limits).run();
  } catch (const DriverError& error) {
    throw Gpu::failure_of(device, error);
  }
}

}  // namespace ddl
