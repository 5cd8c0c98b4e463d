// Binds Python's side of arrays on GPUs: the choice of the driver, an adapter's description of an array, and
// questions about the GPUs themselves.

#include <pybind11/pybind11.h>

#include <string>
#include <utility>

#include "device/driver.h"
#include "device/survey.h"
#include "python/bindings.h"
#include "python/memory.h"
#include "reduce/dtype.h"

namespace py = pybind11;

namespace ddl {

namespace {

Nanoseconds nanoseconds(double seconds) { return static_cast<Nanoseconds>(seconds * static_cast<double>(kSecond)); }

MeasuredGpu measure(int device, uint64_t piece_bytes, double sample, double patience) {
  if (device < 0 || piece_bytes == 0 || !(sample > 0 && sample < 60) || !(patience > 0 && patience < 600)) {
    refuse("measure_gpu", "the GPU's number, the bytes of a piece, or the seconds make no sense; give positive ones");
  }
  return measure_gpu(device, {piece_bytes, nanoseconds(sample), nanoseconds(patience)});
}

void bind_survey(py::module_& m) {
  using Released = py::call_guard<py::gil_scoped_release>;
  py::class_<DriverState>(m, "GpuDriverState")
      .def_readonly("version", &DriverState::version)
      .def_readonly("count", &DriverState::count)
      .def_readonly("problem", &DriverState::problem)
      .def_readonly("missing", &DriverState::missing);
  m.def("survey_gpu_driver", &survey_driver, Released(), "Load the GPUs' driver; return whether it can be used.");
  py::class_<DeviceDescription>(m, "GpuDescription")
      .def_readonly("name", &DeviceDescription::name)
      .def_readonly("pci_address", &DeviceDescription::pci_address)
      .def_readonly("memory_bytes", &DeviceDescription::memory_bytes)
      .def_readonly("major", &DeviceDescription::major)
      .def_readonly("minor", &DeviceDescription::minor)
      .def_readonly("copy_engines", &DeviceDescription::copy_engines)
      .def_readonly("compute_mode", &DeviceDescription::compute_mode)
      .def_readonly("numa_node", &DeviceDescription::numa_node);
  m.def("describe_gpu", &describe_gpu, py::arg("device"), Released(), "Return what the driver says of a GPU.");
  py::class_<MeasuredGpu>(m, "MeasuredGpu")
      .def_readonly("down", &MeasuredGpu::down)
      .def_readonly("up", &MeasuredGpu::up)
      .def_readonly("both_down", &MeasuredGpu::both_down)
      .def_readonly("both_up", &MeasuredGpu::both_up)
      .def_readonly("registering", &MeasuredGpu::registering)
      .def_readonly("refusal", &MeasuredGpu::refusal)
      .def_readonly("words_problem", &MeasuredGpu::words_problem);
  m.def("measure_gpu", &measure, py::arg("device"), py::arg("piece_bytes"), py::arg("sample"), py::arg("patience"),
        Released(), "Copy between a GPU and the arena for a while; return what was reached.");
}

GpuMemory make_memory(uintptr_t address, uint64_t count, const std::string& dtype, uintptr_t stream,
                      py::object owner) {
  GpuMemory memory;
  memory.address = address;
  memory.count = count;
  memory.type = element_type_named(dtype);
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
  m.def("describe_arrays_of", &describe_arrays_of, py::arg("type"), py::arg("function"),
        "Have function(array) say what an array of a type is, where DLPack does not tell: a GpuMemory or a numpy\n"
        "array; or None, and DLPack is asked.");
  m.def("describe_host_arrays_of", &describe_host_arrays_of, py::arg("type"), py::arg("function"),
        "Have function(array) say where an array of exactly that type is in the host's memory: (owner, address,\n"
        "elements, element_number), or None, and DLPack is asked. Where function is None, the array is that tuple.");
  m.def(
      "element_number", [](const std::string& name) { return element_type_named(name).number(); }, py::arg("name"),
      "The number of an element type, \"float32\" or \"complex64\"; InvalidArgument if there is none.");
  bind_survey(m);
}

}  // namespace ddl
