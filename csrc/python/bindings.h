// The parts of the extension module, one function per concern.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>

#include "base/error.h"
#include "python/handle.h"

namespace ddl {

void bind_errors(pybind11::module_& m);
void bind_reduce(pybind11::module_& m);
void bind_memory(pybind11::module_& m);
void bind_pieces(pybind11::module_& m);
void bind_plan(pybind11::module_& m);
void bind_device(pybind11::module_& m);
void bind_gpu_block(pybind11::module_& m);
void bind_communicator(pybind11::module_& m);
void bind_recorder(pybind11::module_& m);
void bind_throwing(pybind11::module_& m);
void bind_encryption(pybind11::module_& m);
// Adds its methods to the type that bind_communicator has made.
void bind_calls(pybind11::module_& m, pybind11::class_<Handle, std::shared_ptr<Handle>>& communicator);
void bind_native_calls(pybind11::module_& m, pybind11::class_<Handle, std::shared_ptr<Handle>>& communicator);

}  // namespace ddl
