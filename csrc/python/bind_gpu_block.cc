// Binds memory of a GPU that DDL itself allocates, and gives it out by DLPack.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "device/gpu_block.h"
#include "python/bindings.h"
#include "python/dlpack.h"
#include "python/memory.h"

namespace py = pybind11;

namespace ddl {

namespace {

// Freeing memory of a GPU may wait for what is queued there. A forked child never touches its copy.
struct EndBlock {
  int pid = process_id();
  void operator()(GpuBlock* block) const {
    if (pid != process_id()) return;
    const py::gil_scoped_release released;
    delete block;
  }
};

// What a consumer of DLPack gets.
struct Exported {
  DLManagedTensor managed{};
  std::vector<int64_t> shape;
  py::object block;
};

void end_exported(DLManagedTensor* managed) {
  const py::gil_scoped_acquire acquired;
  delete static_cast<Exported*>(managed->manager);
}

void end_capsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, "dltensor") == 0) return;  // a consumer that takes it renames it
  auto* const managed = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule, "dltensor"));
  managed->deleter(managed);
}

py::object capsule_of(const py::object& block, std::vector<int64_t> shape, uint8_t type_code, uint8_t bits) {
  auto exported = std::make_unique<Exported>();
  const GpuBlock& memory = block.cast<const GpuBlock&>();
  exported->shape = std::move(shape);
  exported->block = block;
  DLTensor& tensor = exported->managed.tensor;
  tensor.data = reinterpret_cast<void*>(memory.address());
  tensor.device_type = kDlCuda;
  tensor.device_id = memory.device();
  tensor.ndim = static_cast<int32_t>(exported->shape.size());
  tensor.type_code = type_code;
  tensor.type_bits = bits;
  tensor.type_lanes = 1;
  tensor.shape = exported->shape.data();
  exported->managed.manager = exported.get();
  exported->managed.deleter = end_exported;
  PyObject* const capsule = PyCapsule_New(&exported->managed, "dltensor", end_capsule);
  if (capsule == nullptr) throw py::error_already_set();
  (void)exported.release();
  return py::reinterpret_steal<py::object>(capsule);
}

void check_size(const GpuBlock& block, const py::buffer_info& info) {
  if (static_cast<uint64_t>(info.size * info.itemsize) != block.bytes()) {
    refuse("GpuBlock",
           std::to_string(info.size * info.itemsize) + " bytes were given for " + std::to_string(block.bytes()));
  }
}

}  // namespace

void bind_gpu_block(py::module_& m) {
  py::class_<GpuBlock, std::unique_ptr<GpuBlock, EndBlock>>(m, "GpuBlock",
                                                            "Memory of a GPU that DDL itself allocates.")
      .def(py::init([](int device, uint64_t bytes) {
             const py::gil_scoped_release released;
             return std::unique_ptr<GpuBlock, EndBlock>(new GpuBlock(device, bytes));
           }),
           py::arg("device"), py::arg("bytes"))
      .def_property_readonly("device", &GpuBlock::device)
      .def("capsule", &capsule_of, py::arg("shape"), py::arg("type_code"), py::arg("bits"),
           "Return it as DLPack wants it; the capsule, and who takes it, keep it alive.")
      .def_property_readonly("address", &GpuBlock::address)
      .def(
          "write",
          [](GpuBlock& block, const py::buffer& values) {
            const py::buffer_info info = values.request();
            check_size(block, info);
            const py::gil_scoped_release released;
            block.write(static_cast<const char*>(info.ptr));
          },
          py::arg("values"), "Copy as many bytes as it has from an array of the host.")
      .def(
          "read",
          [](GpuBlock& block, const py::buffer& values) {
            const py::buffer_info info = values.request(true);
            check_size(block, info);
            const py::gil_scoped_release released;
            block.read(static_cast<char*>(info.ptr));
          },
          py::arg("values"), "Copy them to an array of the host.");
}

}  // namespace ddl
