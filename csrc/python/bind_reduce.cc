// reduce() for Python: what the tests call to hold the arithmetic against exact oracles. The engine calls it
// directly.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reduce/kernel_table.h"
#include "reduce/reduce.h"

namespace py = pybind11;

namespace {

using Bytes = py::array_t<std::uint8_t, py::array::c_style>;

std::vector<ddl::KernelSet> kernel_sets() {
  ddl::KernelSet sets[ddl::kMaxKernelSets];
  const int count = ddl::runnable_kernels(sets);
  return {sets, sets + count};
}

std::vector<std::string> kernel_set_names() {
  std::vector<std::string> names;
  for (const ddl::KernelSet& set : kernel_sets()) names.emplace_back(set.name);
  return names;
}

ddl::KernelFinder kernels_named(const std::string& name) {
  for (const ddl::KernelSet& set : kernel_sets()) {
    if (name == set.name) return set.find;
  }
  throw py::value_error("reduce_arrays: this machine has no kernels '" + name + "'");
}

// Arguments come from tests alone, so a refusal is a ValueError with the value; the engine validates its own.
void reduce_arrays(const std::string& dtype_name, const std::string& op_name, Bytes dst,
                   const std::vector<Bytes>& srcs, std::uint64_t divisor, const std::optional<std::string>& kernels) {
  ddl::DType dtype{};
  ddl::ReduceOp op{};
  if (!ddl::parse(dtype_name.c_str(), &dtype)) throw py::value_error("reduce_arrays: no dtype '" + dtype_name + "'");
  if (!ddl::parse(op_name.c_str(), &op)) throw py::value_error("reduce_arrays: no op '" + op_name + "'");
  if (srcs.empty()) throw py::value_error("reduce_arrays: needs at least one source");
  if (divisor == 0) throw py::value_error("reduce_arrays: divisor is 0");
  const py::ssize_t bytes = dst.nbytes();
  const auto element = static_cast<py::ssize_t>(ddl::element_size(dtype));
  if (bytes % element != 0) {
    throw py::value_error("reduce_arrays: " + std::to_string(bytes) + " bytes are no whole number of " + dtype_name);
  }
  std::vector<const void*> pointers;
  for (const Bytes& src : srcs) {
    if (src.nbytes() != bytes) {
      throw py::value_error("reduce_arrays: source " + std::to_string(pointers.size()) + " has " +
                            std::to_string(src.nbytes()) + " bytes, the destination " + std::to_string(bytes));
    }
    pointers.push_back(src.data());
  }
  void* out = dst.mutable_data();  // raises ValueError where dst is read-only
  const int n = static_cast<int>(pointers.size());
  if (kernels) {
    const ddl::KernelFinder find = kernels_named(kernels.value());
    find(dtype, op)(out, pointers.data(), n, static_cast<std::size_t>(bytes), divisor);
  } else {
    ddl::reduce(dtype, op, out, pointers.data(), n, static_cast<std::size_t>(bytes / element), divisor);
  }
}

}  // namespace

namespace ddl {

void bind_reduce(py::module_& module) {
  module.def("reduce_arrays", &reduce_arrays, py::arg("dtype"), py::arg("op"), py::arg("dst").noconvert(),
             py::arg("srcs"), py::arg("divisor") = 1, py::arg("kernels") = py::none(),
             "Reduce uint8 views of arrays: dst = (srcs[0] op srcs[1] op …) / divisor. For tests.");
  module.def("reduce_kernels", &kernel_set_names,
             "Names of the kernels that this machine can run, the fastest last.");
}

}  // namespace ddl
