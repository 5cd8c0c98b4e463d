// What a stream queues. A command is begun under the driver's lock, run without it, and then counts as done.
//
// `begin` tells the ledger what the command is about to touch; `run` touches it. A command that must not touch its
// memory any more (it was unregistered meanwhile) says so in `begin`, and then does nothing.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "objects.h"

namespace fake {

class Driver;

class Command {
 public:
  enum class State { kQueued, kRunning, kDone };
  enum { kNoEngine = -1, kDownEngine, kUpEngine, kEngines };

  explicit Command(const char* entry) : entry(entry) {}
  virtual ~Command() = default;
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  // Whether a head of a queue can be run, as far as it depends on memory.
  virtual bool ready() const { return true; }
  virtual bool polls() const { return false; }  // `ready` changes without a call of the driver
  virtual bool marks() const { return false; }  // it does nothing
  virtual bool for_function_thread() const { return false; }
  virtual int engine() const { return kNoEngine; }  // of the device, which does one command at a time
  virtual void begin(Driver&) {}
  virtual void run() {}

  std::string who() const { return std::string(entry) + " #" + std::to_string(number); }

  const char* const entry;
  uint64_t number = 0;
  uint32_t time = 0;  // of the stream
  State state = State::kQueued;
  std::shared_ptr<Stream> stream;               // until it is done
  std::vector<std::shared_ptr<Command>> after;  // of other streams; until it is done
  Clock clock;  // first what the caller knew, in the end what everybody knows who knows that it is done
};

// Where a word or a range really is, and what keeps it valid.
struct Place {
  char* memory = nullptr;  // null: nowhere
  std::shared_ptr<Allocation> allocation;
  std::shared_ptr<Registration> registration;
};

// An event's record, or a wait for one (by `after`): it only has a place in the order.
class Marker final : public Command {
 public:
  using Command::Command;
  bool marks() const override { return true; }
};

class Copy final : public Command {
 public:
  Copy(const char* entry, bool to_device, DevicePointer device, char* host, size_t bytes)
      : Command(entry), to_device_(to_device), device_(device), host_(host), bytes_(bytes) {}
  int engine() const override { return to_device_ ? kUpEngine : kDownEngine; }
  void begin(Driver& driver) override;
  void run() override;

  std::shared_ptr<Allocation> allocation;
  std::shared_ptr<Registration> registration;  // null: pageable memory, whose owner is blocked

 private:
  const bool to_device_;
  const DevicePointer device_;
  char* const host_;
  const size_t bytes_;
  bool skipped_ = false;
  std::chrono::nanoseconds takes_{0};  // at least, by an option
};

class WriteValue final : public Command {
 public:
  WriteValue(const char* entry, DevicePointer address, Place place, uint32_t value, bool barrier)
      : Command(entry), address_(address), place_(std::move(place)), value_(value), barrier_(barrier) {}
  void begin(Driver& driver) override;
  void run() override;

 private:
  const DevicePointer address_;
  const Place place_;
  const uint32_t value_;
  const bool barrier_;
  bool skipped_ = false;
  std::chrono::microseconds takes_{0};  // by an option
};

class WaitValue final : public Command {
 public:
  WaitValue(const char* entry, DevicePointer address, Place place, uint32_t value, unsigned condition)
      : Command(entry), address_(address), place_(std::move(place)), value_(value), condition_(condition) {}
  bool ready() const override;
  bool polls() const override { return true; }
  void begin(Driver& driver) override;

 private:
  const DevicePointer address_;
  const Place place_;
  const uint32_t value_;
  const unsigned condition_;
};

class HostCall final : public Command {
 public:
  HostCall(const char* entry, HostFunction function, void* argument)
      : Command(entry), function_(function), argument_(argument) {}
  bool for_function_thread() const override { return true; }
  void run() override { function_(argument_); }

 private:
  const HostFunction function_;
  void* const argument_;
};

}  // namespace fake
