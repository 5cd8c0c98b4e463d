// Binds NCCL within a host: the library, and this rank's part of a communicator of it.

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "base/process.h"
#include "device/nccl.h"
#include "python/array_view.h"
#include "python/bindings.h"
#include "python/call_checks.h"

namespace py = pybind11;

namespace ddl {

namespace {

// A forked child never touches its copy, as its parent goes on. To end a group may wait for NCCL.
struct EndGroup {
  int pid = process_id();
  void operator()(NcclGroup* group) const {
    if (pid != process_id()) return;
    const py::gil_scoped_release released;
    delete group;
  }
};

}  // namespace

void bind_nccl(py::module_& m) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<Nccl>(m, "Nccl", "The library NCCL.")
      .def(py::init<const std::string&, const std::string&>(), py::arg("library"), py::arg("otherwise") = "")
      .def_property_readonly("version", &Nccl::version)
      .def("make_id", [](const Nccl& nccl) { return py::bytes(nccl.make_id()); })
      .def_static(
          "knows",
          [](const std::string& dtype, long op) { return Nccl::knows(dtype_named(dtype), reduce_op_from(op)); },
          py::arg("dtype"), py::arg("op"));
  py::class_<NcclGroup, std::unique_ptr<NcclGroup, EndGroup>>(
      m, "NcclGroup", "This rank's part of a communicator of NCCL within a host.")
      .def(py::init([](const Nccl& nccl, const py::bytes& id, int size, int rank, int device, double patience) {
             const std::string bytes = id;
             const py::gil_scoped_release released;
             return std::unique_ptr<NcclGroup, EndGroup>(new NcclGroup(
                 nccl, bytes, size, rank, device, static_cast<Nanoseconds>(patience * static_cast<double>(kSecond))));
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

}  // namespace ddl
