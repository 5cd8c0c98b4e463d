// What torch asks of a device that it does not know; and the functions that the Python module calls.
#include <ATen/core/Tensor.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <torch/library.h>

#include <string>

#include "driver.h"
#include "generator.h"
#include "memory.h"
#include "streams.h"

namespace fake_torch {

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return device_count() > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(device_count()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return static_cast<c10::DeviceIndex>(current_device()); }

  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const c10::DeviceIndex former = getCurrentDevice();
    if (device >= 0) set_current_device(device);
    return former;
  }

  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override { return new_generator(device); }

  at::Device getDeviceFromPtr(void* data) const override {
    int attribute = 9, ordinal = 0;
    void* value = &ordinal;
    const Pushed pushed(current_device());
    FAKE_CALL(cuPointerGetAttributes, 1, &attribute, &value, reinterpret_cast<uint64_t>(data));
    return {kFake, static_cast<c10::DeviceIndex>(ordinal)};
  }

  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    const c10::Device device = storage.device();
    at::empty({0}, at::TensorOptions().device(device).dtype(at::kByte))
        .set_(storage)
        .resize_({static_cast<int64_t>(bytes)});
  }
};

void install(const std::string& library) {
  load(library.c_str());
  c10::SetAllocator(kFake, device_allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
}

bool capturing() {
  const c10::Stream stream = current_stream();
  const Pushed pushed(stream.device_index());
  int status = 0;
  FAKE_CALL(cuStreamIsCapturing, handle_of(stream), &status);
  return status != 0;
}

}  // namespace

}  // namespace fake_torch

TORCH_LIBRARY(fake_torch, m) {
  m.def("install(str library) -> ()", [](const std::string& library) { fake_torch::install(library); });
  m.def("restart() -> ()", [] { fake_torch::restart(); });
  m.def("device_count() -> int", [] { return static_cast<int64_t>(fake_torch::device_count()); });
  m.def("host_waits() -> int", [] { return fake_torch::host_waits(); });
  m.def("make_context(int device) -> ()",
        [](int64_t device) { const fake_torch::Pushed pushed(static_cast<int>(device)); });
  m.def("capturing() -> bool", [] { return fake_torch::capturing(); });
  m.def("default_generator(int device) -> Generator?",
        [](int64_t device) { return fake_torch::default_generator(static_cast<int>(device)); });
}
