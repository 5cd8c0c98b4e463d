// Binds what Python decides about arrays on GPUs: which driver is loaded.

#include <pybind11/pybind11.h>

#include "device/driver.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

void bind_device(py::module_& m) {
  m.def("configure_gpu_driver", &Driver::configure, py::arg("library"),
        "Set the library of the GPUs' driver (\"\": libcuda.so.1); without effect once an array on a GPU was used.");
}

}  // namespace ddl
