// Binds what Python decides about arrays on GPUs: which driver is loaded, and what an adapter says of an array.

#include <pybind11/pybind11.h>

#include <string>

#include "device/driver.h"
#include "python/array_view.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

GpuMemory make_memory(uintptr_t address, uint64_t count, const std::string& dtype, uintptr_t stream,
                      py::object owner) {
  GpuMemory memory;
  memory.address = address;
  memory.count = count;
  if (!parse(dtype.c_str(), &memory.dtype)) refuse("GpuMemory", "there is no type '" + dtype + "'");
  memory.stream = stream_handle(stream);
  memory.owner = std::move(owner);
  return memory;
}

}  // namespace

void bind_device(py::module_& m) {
  m.def("configure_gpu_driver", &Driver::configure, py::arg("library"), py::arg("waits_on_gpu"),
        "Set the library of the GPUs' driver (\"\": libcuda.so.1), without effect once an array on a GPU was used; "
        "and\n"
        "whether streams wait for results, where they can, so that ``Work.wait_on`` is possible.");
  py::class_<GpuMemory>(m, "GpuMemory", "Contiguous memory on a GPU, and the stream behind which it may be used.")
      .def(py::init(&make_memory), py::arg("address"), py::arg("count"), py::arg("dtype"), py::arg("stream"),
           py::arg("owner"));
}

}  // namespace ddl
