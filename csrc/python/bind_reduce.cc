// reduce() and the codecs of the wire for Python: the tests call them, to compare the arithmetic with exact results.
// The engine calls them directly.
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/helpers.h"
#include "reduce/copy.h"
#include "reduce/kernel_table.h"
#include "reduce/reduce.h"
#include "reduce/string_copy.h"
#include "reduce/wire_codec.h"

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

ddl::KernelSet kernels_named(const std::string& name) {
  for (const ddl::KernelSet& set : kernel_sets()) {
    if (name == set.name) return set;
  }
  throw py::value_error("this machine has no kernels '" + name + "'");
}

// Only tests pass arguments here, so a refusal is a ValueError with the value. The engine checks its own.
void reduce_arrays(const std::string& dtype_name, const std::string& op_name, std::vector<Bytes> dsts,
                   const std::vector<Bytes>& srcs, std::uint64_t divisor, const std::optional<std::string>& kernels) {
  ddl::DType dtype{};
  ddl::ReduceOp op{};
  if (!ddl::parse(dtype_name.c_str(), &dtype)) throw py::value_error("reduce_arrays: no dtype '" + dtype_name + "'");
  if (!ddl::parse(op_name.c_str(), &op)) throw py::value_error("reduce_arrays: no op '" + op_name + "'");
  if (srcs.empty()) throw py::value_error("reduce_arrays: needs at least one source");
  if (dsts.empty()) throw py::value_error("reduce_arrays: needs at least one destination");
  if (divisor == 0) throw py::value_error("reduce_arrays: divisor is 0");
  const py::ssize_t bytes = dsts[0].nbytes();
  const auto element = static_cast<py::ssize_t>(ddl::element_size(dtype));
  if (bytes % element != 0) {
    throw py::value_error("reduce_arrays: " + std::to_string(bytes) + " bytes are no whole number of " + dtype_name);
  }
  const auto check = [&](const char* what, std::size_t number, const Bytes& array) {
    if (array.nbytes() == bytes) return;
    throw py::value_error(std::string("reduce_arrays: ") + what + " " + std::to_string(number) + " has " +
                          std::to_string(array.nbytes()) + " bytes, the first destination " + std::to_string(bytes));
  };
  std::vector<const void*> in;
  for (const Bytes& src : srcs) {
    check("source", in.size(), src);
    in.push_back(src.data());
  }
  std::vector<void*> out;
  for (Bytes& dst : dsts) {
    check("destination", out.size(), dst);
    out.push_back(dst.mutable_data());  // raises ValueError where it is read-only
  }
  const int m = static_cast<int>(out.size()), n = static_cast<int>(in.size());
  const auto size = static_cast<std::size_t>(bytes);
  if (kernels) {
    kernels_named(kernels.value()).find(dtype, op)(out.data(), m, in.data(), n, size, divisor);
  } else {
    ddl::reduce(dtype, op, out.data(), m, in.data(), n, size / static_cast<std::size_t>(element), divisor);
  }
}

ddl::WireCodec codec_numbered(int number) {
  if (number == 1) return ddl::WireCodec::kBFloat16;
  if (number == 2) return ddl::WireCodec::kFloat16;
  if (number == 3) return ddl::WireCodec::kMxInt8;
  throw py::value_error("there is no codec " + std::to_string(number));
}

// The elements of a conversion. `floats` and `coded` are bytes, so that tests can place them anywhere.
std::size_t elements_of(ddl::WireCodec codec, const Bytes& floats, const Bytes& coded) {
  const auto count = static_cast<std::size_t>(floats.nbytes()) / sizeof(float);
  if (static_cast<std::size_t>(floats.nbytes()) != count * sizeof(float) ||
      static_cast<std::size_t>(coded.nbytes()) != ddl::coded_bytes(codec, count)) {
    throw py::value_error(std::to_string(floats.nbytes()) + " bytes of float32 do not go with " +
                          std::to_string(coded.nbytes()) + " bytes on the wire");
  }
  return count;
}

// Null where a test passes none.
void* residual_of(std::optional<Bytes>* residual, const Bytes& floats) {
  if (!residual->has_value()) return nullptr;
  if (residual->value().nbytes() != floats.nbytes())
    throw py::value_error("the residual is not as long as the floats");
  return residual->value().mutable_data();
}

ddl::WireKernels wire_kernels(int codec, const std::optional<std::string>& kernels) {
  if (kernels) return kernels_named(kernels.value()).find_wire(codec_numbered(codec));
  const std::vector<ddl::KernelSet> sets = kernel_sets();
  return sets.back().find_wire(codec_numbered(codec));
}

void encode_floats(int codec, Bytes coded, const Bytes& floats, const std::optional<std::string>& kernels,
                   std::optional<Bytes> residual) {
  const std::size_t count = elements_of(codec_numbered(codec), floats, coded);
  wire_kernels(codec, kernels).encode(coded.mutable_data(), floats.data(), residual_of(&residual, floats), count);
}

void decode_floats(int codec, Bytes floats, const Bytes& coded, const std::optional<std::string>& kernels) {
  const std::size_t count = elements_of(codec_numbered(codec), floats, coded);
  wire_kernels(codec, kernels).decode(floats.mutable_data(), coded.data(), count);
}

void add_encoded(int codec, Bytes sum, const Bytes& own, const Bytes& coded, std::uint64_t divisor, bool finish,
                 const std::optional<std::string>& kernels, std::optional<Bytes> residual) {
  const std::size_t count = elements_of(codec_numbered(codec), sum, coded);
  if (own.nbytes() != sum.nbytes()) throw py::value_error("add_encoded: the sum is not as long as what it adds to");
  if (divisor == 0) throw py::value_error("add_encoded: divisor is 0");
  wire_kernels(codec, kernels)
      .add(sum.mutable_data(), own.data(), coded.data(), residual_of(&residual, sum), count, divisor, finish);
}

void copy_bytes(Bytes dst, const Bytes& src, bool streaming, const std::optional<std::string>& kernels) {
  if (dst.nbytes() != src.nbytes()) throw py::value_error("copy_bytes: the arrays differ in length");
  void* out = dst.mutable_data();
  const auto bytes = static_cast<std::size_t>(src.nbytes());
  if (kernels == "string") {
    ddl::string_copy(out, src.data(), bytes);
  } else if (kernels) {
    const ddl::CopyKernels copy = kernels_named(kernels.value()).copy;
    (streaming ? copy.streaming : copy.cached)(out, src.data(), bytes);
  } else {
    ddl::copy(out, src.data(), bytes, streaming ? ddl::Stores::kStreaming : ddl::Stores::kCached);
  }
}

}  // namespace

namespace ddl {

void bind_reduce(py::module_& module) {
  module.def("reduce_arrays", &reduce_arrays, py::arg("dtype"), py::arg("op"), py::arg("dsts").noconvert(),
             py::arg("srcs"), py::arg("divisor") = 1, py::arg("kernels") = py::none(),
             "Reduce uint8 views of arrays: each of dsts = (srcs[0] op srcs[1] op …) / divisor. For tests.");
  module.def("reduce_kernels", &kernel_set_names,
             "Names of the kernels that this machine can run, the fastest last.");
  module.def("copy_bytes", &::copy_bytes, py::arg("dst").noconvert(), py::arg("src"), py::arg("streaming") = false,
             py::arg("kernels") = py::none(),
             "Copy uint8 arrays the way the engine does, or by some kernels, or by 'string'. For tests.");
  module.attr("WORTH_SHARING") = Helpers::kWorthSharing;
  module.attr("MOST_HELPERS") = Helpers::kMost;
  module.def(
      "helpers", [] { return std::make_pair(Helpers::count(), Helpers::parts_taken()); },
      "How many threads help with large reductions and copies here, and how many parts they have taken so far.");
  module.def(
      "encode_floats", &::encode_floats, py::arg("codec"), py::arg("coded").noconvert(),
      py::arg("floats").noconvert(), py::arg("kernels") = py::none(), py::arg("residual").noconvert() = py::none(),
      "Write float32 (as uint8) as codec 1 (bfloat16), 2 (float16) or 3 (MXINT8) goes over the wire. For tests.");
  module.def("decode_floats", &::decode_floats, py::arg("codec"), py::arg("floats").noconvert(),
             py::arg("coded").noconvert(), py::arg("kernels") = py::none(),
             "The way back: floats = coded. All of them uint8. For tests.");
  module.def("add_encoded", &::add_encoded, py::arg("codec"), py::arg("sum").noconvert(), py::arg("own").noconvert(),
             py::arg("coded").noconvert(), py::arg("divisor") = 1, py::arg("finish") = false,
             py::arg("kernels") = py::none(), py::arg("residual").noconvert() = py::none(),
             "sum = (own + coded) / divisor, with coded as on the wire; finish: rounded as if sent. For tests.");
}

}  // namespace ddl
