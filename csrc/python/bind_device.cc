// Binds what Python decides about arrays on GPUs: which driver is loaded, and what an adapter says of an array.

#include <pybind11/pybind11.h>

#include <memory>
#include <string>
#include <utility>

#include "device/driver.h"
#include "device/nccl.h"
#include "python/array_view.h"
#include "python/bindings.h"
#include "python/call_checks.h"

namespace py = pybind11;

namespace ddl {

namespace {

DType dtype_named(const std::string& name) {
  DType dtype{};
  if (!parse(name.c_str(), &dtype)) refuse("dtype", "there is no type '" + name + "'");
  return dtype;
}

GpuMemory make_memory(uintptr_t address, uint64_t count, const std::string& dtype, uintptr_t stream,
                      py::object owner) {
  GpuMemory memory;
  memory.address = address;
  memory.count = count;
  memory.dtype = dtype_named(dtype);
  memory.stream = stream_handle(stream);
  memory.owner = std::move(owner);
  return memory;
}

void bind_nccl(py::module_& m) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Nccl>(m, "Nccl", "The library NCCL.")
      .def(py::init<const std::string&>(), py::arg("library"))
      .def_property_readonly("version", &Nccl::version)
      .def("make_id", [](const Nccl& nccl) { return py::bytes(nccl.make_id()); })
      .def_static(
          "knows",
          [](const std::string& dtype, long op) { return Nccl::knows(dtype_named(dtype), reduce_op_from(op)); },
          py::arg("dtype"), py::arg("op"));
  py::class_<NcclGroup>(m, "NcclGroup", "This rank's part of a communicator of NCCL within a host.")
      .def(py::init([](const Nccl& nccl, const py::bytes& id, int size, int rank, int device, double patience) {
             const std::string bytes = id;
             const py::gil_scoped_release released;
             return std::make_unique<NcclGroup>(nccl, bytes, size, rank, device,
                                                static_cast<Nanoseconds>(patience * static_cast<double>(kSecond)));
           }),
           py::arg("nccl"), py::arg("id"), py::arg("size"), py::arg("rank"), py::arg("device"), py::arg("patience"))
      .def_property_readonly("stream",
                             [](const NcclGroup& group) { return reinterpret_cast<uintptr_t>(group.stream()); })
      .def(
          "follow", [](NcclGroup& group, uintptr_t stream) { group.follow(stream_handle(stream)); },
          py::arg("stream"), Released())
      .def(
          "reduce_scatter",
          [](NcclGroup& group, uintptr_t address, uint64_t count, const std::string& dtype, long op) {
            group.reduce_scatter(address, count, dtype_named(dtype), reduce_op_from(op));
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("op"), Released())
      .def(
          "all_gather",
          [](NcclGroup& group, uintptr_t address, uint64_t count, const std::string& dtype) {
            group.all_gather(address, count, dtype_named(dtype));
          },
          py::arg("address"), py::arg("count"), py::arg("dtype"), Released())
      .def("problem", &NcclGroup::problem, Released())
      .def("abort", &NcclGroup::abort, Released());
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("configure_gpu_driver", &Driver::configure, py::arg("library"), py::arg("waits_on_gpu"),
        "Set the library of the GPUs' driver (\"\": libcuda.so.1), without effect once an array on a GPU was used; "
        "and\n"
        "whether streams wait for results, where they can, so that ``Work.wait_on`` is possible.");
  py::class_<GpuMemory>(m, "GpuMemory", "Contiguous memory on a GPU, and the stream behind which it may be used.")
      .def(py::init(&make_memory), py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("stream"),
           py::arg("owner"))
      .def_property_readonly("address", [](const GpuMemory& memory) { return memory.address; })
      .def_property_readonly("count", [](const GpuMemory& memory) { return memory.count; })
      .def_property_readonly("dtype", [](const GpuMemory& memory) { return name(memory.dtype); })
      .def_property_readonly("stream",
                             [](const GpuMemory& memory) { return reinterpret_cast<uintptr_t>(memory.stream); })
      .def_property_readonly("owner", [](const GpuMemory& memory) { return memory.owner; })
      .def_property_readonly("device",
                             [](const GpuMemory& memory) { return Driver::get().device_of(memory.address); });
  bind_nccl(m);
}

}  // namespace ddl
