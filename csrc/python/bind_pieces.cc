// Packs scattered arrays one behind another, and unpacks them, in one call without the interpreter's lock. So a
// model's gradients, which a framework keeps in many places, become one operation.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>
#include <vector>

#include "base/error.h"
#include "python/bindings.h"
#include "python/memory.h"
#include "reduce/copy.h"

namespace py = pybind11;

namespace ddl {

namespace {

// Which arrays of a list lie in `flat`, in that order, and how many elements each has.
class Pieces {
 public:
  Pieces(const py::object& flat, std::vector<size_t> numbers, std::vector<uint64_t> counts)
      : flat_(host_memory_of(flat, "flat", true)), numbers_(std::move(numbers)), counts_(std::move(counts)) {
    uint64_t total = 0;
    for (const uint64_t count : counts_) total += count;
    if (numbers_.size() != counts_.size() || total != flat_.count) {
      throw Error(ErrorKind::kInvalidArgument, "pieces: the arrays are not as long as what they are copied to");
    }
  }

  void pack(const py::list& arrays) const {
    const std::vector<Memory> memories = memories_of(arrays);
    const py::gil_scoped_release released;
    char* at = flat_.data;
    for (const Memory& memory : memories) {
      copy(at, memory.data, memory.bytes());
      at += memory.bytes();
    }
  }

  void unpack(const py::list& arrays) const {
    const std::vector<Memory> memories = memories_of(arrays);
    const py::gil_scoped_release released;
    const char* at = flat_.data;
    for (const Memory& memory : memories) {
      copy(memory.data, at, memory.bytes());
      at += memory.bytes();
    }
  }

 private:
  // What is packed is unpacked later. So an array that cannot be written is refused before anything is sent.
  std::vector<Memory> memories_of(const py::list& arrays) const {
    std::vector<Memory> memories;
    memories.reserve(numbers_.size());
    for (size_t i = 0; i < numbers_.size(); ++i) {
      const std::string name = "array " + std::to_string(numbers_[i]);
      if (numbers_[i] >= arrays.size()) {
        throw Error(ErrorKind::kInvalidArgument, name + " is missing: there are " + std::to_string(arrays.size()));
      }
      memories.push_back(host_memory_of(arrays[numbers_[i]], name.c_str(), true));
      const Memory& memory = memories.back();
      if (memory.count != counts_[i] || !(memory.type == flat_.type)) {
        throw Error(ErrorKind::kInvalidArgument, name + " is " + std::to_string(memory.count) + " x " +
                                                     memory.type.name() + ", but was " + std::to_string(counts_[i]) +
                                                     " x " + flat_.type.name());
      }
    }
    return memories;
  }

  const Memory flat_;
  const std::vector<size_t> numbers_;
  const std::vector<uint64_t> counts_;
};

}  // namespace

void bind_pieces(py::module_& m) {
  py::class_<Pieces>(m, "Pieces", "Some arrays of a list, behind one another in `flat`.")
      .def(py::init<const py::object&, std::vector<size_t>, std::vector<uint64_t>>(), py::arg("flat"),
           py::arg("numbers"), py::arg("counts"))
      .def("pack", &Pieces::pack, py::arg("arrays"), "Copy them to `flat`.")
      .def("unpack", &Pieces::unpack, py::arg("arrays"), "Copy them back.");
}

}  // namespace ddl
