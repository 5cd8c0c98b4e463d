// Turns the core's errors into the classes of the same names in ddl.errors.

#include <pybind11/pybind11.h>

#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

void bind_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      const py::object type = py::module_::import("ddl.errors").attr(name(error.kind()));
      const py::object raised = type(error.what());
      if (!error.reason().empty()) raised.attr("reason") = error.reason();
      PyErr_SetObject(type.ptr(), raised.ptr());
    }
  });
}

}  // namespace ddl
