#include "generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <mutex>

#include "driver.h"
#include "streams.h"

namespace fake_torch {

namespace {

class DeviceGenerator final : public c10::GeneratorImpl {
 public:
  DeviceGenerator(int device, at::Generator numbers)
      : c10::GeneratorImpl(c10::Device(kFake, static_cast<c10::DeviceIndex>(device)),
                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        numbers(std::move(numbers)) {}

  void set_current_seed(uint64_t seed) override { numbers.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { numbers.set_offset(offset); }
  uint64_t get_offset() const override { return numbers.get_offset(); }
  uint64_t current_seed() const override { return numbers.current_seed(); }
  uint64_t seed() override { return numbers.seed(); }
  void set_state(const c10::TensorImpl& state) override { numbers.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return numbers.unsafeGetGeneratorImpl()->get_state();
  }

  at::Generator numbers;

 private:
  DeviceGenerator* clone_impl() const override { return new DeviceGenerator(device_.index(), numbers.clone()); }
};

}  // namespace

const at::Generator& default_generator(int device) {
  static std::mutex mutex;
  static auto* const all = new std::array<at::Generator, kMostDevices>;
  const std::lock_guard<std::mutex> lock(mutex);
  at::Generator& generator = all->at(static_cast<size_t>(device < 0 ? current_device() : device));
  if (!generator.defined()) generator = new_generator(device);
  return generator;
}

at::Generator new_generator(int device) {
  const int index = device < 0 ? current_device() : device;
  return at::make_generator<DeviceGenerator>(index, at::detail::createCPUGenerator());
}

at::Generator generator_for_cpu(const at::Generator& generator, int device) {
  const at::Generator& given = generator.defined() ? generator : default_generator(device);
  auto* const own = dynamic_cast<DeviceGenerator*>(given.unsafeGetGeneratorImpl());
  return own == nullptr ? given : own->numbers;
}

}  // namespace fake_torch
