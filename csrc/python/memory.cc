#include "python/memory.h"

#include <pybind11/numpy.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "python/dlpack.h"

namespace py = pybind11;

namespace ddl {

namespace {

bool number(DType dtype, ElementType* type) {
  *type = {dtype, 1};
  return true;
}

bool float_of(int bits, uint32_t width, ElementType* type) {
  type->width = width;
  if (bits == 16) return type->dtype = DType::kFloat16, true;
  if (bits == 32) return type->dtype = DType::kFloat32, true;
  if (bits == 64) return type->dtype = DType::kFloat64, true;
  return false;
}

bool integer_of(bool is_signed, int bits, ElementType* type) {
  if (bits == 8) return number(is_signed ? DType::kInt8 : DType::kUInt8, type);
  if (bits == 16) return number(is_signed ? DType::kInt16 : DType::kUInt16, type);
  if (bits == 32) return number(is_signed ? DType::kInt32 : DType::kUInt32, type);
  if (bits == 64) return number(is_signed ? DType::kInt64 : DType::kUInt64, type);
  return false;
}

bool numpy_type(const py::dtype& dtype, ElementType* type) {
  const char order = dtype.byteorder();
  if (order != '=' && order != '|' && order != '<') return false;
  const int bits = static_cast<int>(dtype.itemsize()) * 8;
  switch (dtype.kind()) {
    case 'f':
      return float_of(bits, 1, type);
    case 'i':
      return integer_of(true, bits, type);
    case 'u':
      return integer_of(false, bits, type);
    case 'b':
      return number(DType::kBool, type);
    case 'c':
      return float_of(bits / 2, 2, type);
    default:
      break;
  }
  // ml_dtypes registers bfloat16 with numpy as a type of its own.
  if (bits == 16 && std::string(py::str(dtype)) == "bfloat16") return number(DType::kBFloat16, type);
  return false;
}

bool dlpack_type(const DLTensor& tensor, ElementType* type) {
  if (tensor.type_lanes != 1) return false;
  switch (tensor.type_code) {
    case kDlInt:
      return integer_of(true, tensor.type_bits, type);
    case kDlUInt:
      return integer_of(false, tensor.type_bits, type);
    case kDlFloat:
      return float_of(tensor.type_bits, 1, type);
    case kDlBfloat:
      return tensor.type_bits == 16 && number(DType::kBFloat16, type);
    case kDlComplex:
      return float_of(tensor.type_bits / 2, 2, type);
    case kDlBool:
      return tensor.type_bits == 8 && number(DType::kBool, type);
    default:
      return false;
  }
}

const char* const kTypes = "use float16, bfloat16, float32, float64, complex64, complex128, an integer type or bool";

Memory memory_of_numpy(const py::array& array, const char* what, bool target) {
  Memory memory;
  const py::dtype dtype = array.dtype();
  if (!numpy_type(dtype, &memory.type)) {
    refuse(what, "arrays of type " + std::string(py::str(dtype)) + " cannot be communicated; " + kTypes);
  }
  if ((array.flags() & py::array::c_style) == 0) {
    refuse(what, target ? "the target is not contiguous, so it cannot be written in place; make it contiguous first"
                        : "the array is not contiguous; pass numpy.ascontiguousarray(x)");
  }
  memory.writable = array.writeable();
  if (target && !memory.writable) refuse(what, "the target is read-only");
  memory.data = static_cast<char*>(const_cast<void*>(array.data()));
  memory.count = static_cast<uint64_t>(array.size());
  memory.owner = array;
  return memory;
}

// To open a GPU takes long, the first time. Other threads go on meanwhile.
std::shared_ptr<Gpu> opened(int device) {
  const py::gil_scoped_release released;
  return Gpu::of(device);
}

std::shared_ptr<Gpu> opened_of(DevicePointer address) {
  const py::gil_scoped_release released;
  return Gpu::of(Driver::get().device_of(address));
}

// `place`: where the array is, if that is a GPU. Then it gets the stream that the array's owner has made wait for it.
py::object dlpack_capsule(const py::object& object, const char* what, OnGpu* place) {
  const Gpu* const gpu = place->gpu.get();
  try {
    const py::object give = object.attr("__dlpack__");
    if (gpu == nullptr) return give();
    const Driver::Current current(Driver::get(), gpu->context());  // torch gives out arrays of its current GPU only
    {
      const py::gil_scoped_release released;
      place->gate = std::make_shared<Gpu::Gate>(place->gpu);
    }
    place->ordered = true;
    place->stream = place->gate->stream();
    return give(py::arg("stream") = reinterpret_cast<uintptr_t>(place->stream));
  } catch (const DriverError& error) {
    throw gpu == nullptr ? error : gpu->failure(error);
  } catch (py::error_already_set& error) {
    if (!error.matches(PyExc_Exception)) throw;
    if (gpu != nullptr) gpu->check();  // is it the GPU that has failed?
    refuse(what, "its owner does not give the array out: " + std::string(py::str(error.value())));
  }
}

Memory memory_described(const GpuMemory& described) {
  Memory memory;
  memory.data = reinterpret_cast<char*>(described.address);
  memory.count = described.count;
  memory.type = described.type;
  memory.writable = true;
  memory.owner = described.owner;
  if (memory.count == 0) return memory;
  memory.on_gpu = std::make_shared<OnGpu>(OnGpu{opened_of(described.address), true, described.stream, nullptr});
  return memory;
}

// Of each Python type that an adapter has taken on: what describes its arrays. They live as long as the process.
struct Describer {
  PyObject* type;
  PyObject* function;
};
using Describers = std::vector<Describer>;
Describers& describers() {
  static auto* const all = new Describers();
  return *all;
}
Describers& host_describers() {
  static auto* const all = new Describers();
  return *all;
}

void add(Describers* describers, const py::object& type, py::object function) {
  describers->push_back({py::object(type).release().ptr(), function.release().ptr()});
}

// What an adapter says of an array of exactly its type, if it is in memory of the host.
std::optional<Memory> described_in_host(const py::object& object) {
  for (const Describer& describer : host_describers()) {
    if (reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())) != describer.type) continue;
    const auto function = py::reinterpret_borrow<py::object>(describer.function);
    const py::object answer = function.is_none() ? object : function(object);
    if (answer.is_none()) continue;
    const auto fields = answer.cast<py::tuple>();
    Memory memory;
    memory.owner = fields[0];
    memory.data = reinterpret_cast<char*>(fields[1].cast<uintptr_t>());
    memory.count = fields[2].cast<uint64_t>();
    memory.type = ElementType::numbered(fields[3].cast<int>());
    memory.writable = true;
    return memory;
  }
  return std::nullopt;
}

// What an adapter says of the array; nothing if none knows its type, or it leaves it to DLPack.
std::optional<Memory> described(const py::object& object, const char* what, bool target) {
  for (const Describer& describer : describers()) {
    const int is = PyObject_IsInstance(object.ptr(), describer.type);
    if (is < 0) throw py::error_already_set();
    if (is == 0) continue;
    const py::object answer = py::reinterpret_borrow<py::object>(describer.function)(object);
    if (py::isinstance<GpuMemory>(answer)) return memory_described(answer.cast<const GpuMemory&>());
    if (!answer.is_none()) return memory_of(answer, what, target);
  }
  return std::nullopt;
}

Memory memory_of_dlpack(const py::object& object, const char* what, bool target) {
  if (target && py::str(py::type::of(object).attr("__module__")).cast<std::string>().compare(0, 3, "jax") == 0) {
    refuse(what,
           "arrays of JAX cannot be written; pass a copy in another framework's array, or use a call that returns "
           "a new array");
  }
  py::tuple device;
  try {
    device = object.attr("__dlpack_device__")();
  } catch (const py::error_already_set&) {  // DLPack has no number for it; who knows its type may know more
    if (std::optional<Memory> known = described(object, what, target)) return *std::move(known);
    throw;
  }
  const int kind = device[0].cast<int>();
  Memory memory;
  OnGpu place;
  if (is_on_gpu(kind)) {
    if (std::optional<Memory> known = described(object, what, target)) return *std::move(known);
    place.gpu = opened(device[1].cast<int>());
  } else if (kind != kDlCpu && kind != kDlCudaHost) {
    refuse(what, "the array is neither in CPU memory nor on a CUDA GPU; copy it to the CPU first");
  }
  py::object capsule;
  try {
    capsule = dlpack_capsule(object, what, &place);
  } catch (const Error&) {
    if (place.gpu != nullptr) throw;
    if (std::optional<Memory> known = described(object, what, target)) return *std::move(known);
    throw;
  }
  const auto* tensor = static_cast<const DLTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw py::error_already_set();
  if (!dlpack_type(*tensor, &memory.type))
    refuse(what, std::string("its element type cannot be communicated; ") + kTypes);
  memory.count = 1;
  for (int i = 0; i < tensor->ndim; ++i) memory.count *= static_cast<uint64_t>(tensor->shape[i]);
  int64_t expected = 1;
  for (int i = tensor->ndim - 1; i >= 0 && tensor->strides != nullptr && memory.count > 0; --i) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) refuse(what, "the array is not contiguous");
    expected *= tensor->shape[i];
  }
  memory.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  memory.writable = true;  // DLPack before version 1.0 cannot say
  memory.owner = capsule;  // not consumed: its own destructor lets the tensor go
  if (place.gpu != nullptr && memory.count > 0) memory.on_gpu = std::make_shared<OnGpu>(std::move(place));
  return memory;
}

// Version 3 of the CUDA array interface, which names the stream that a reader must wait for.
Memory memory_of_cuda_interface(const py::object& object, const char* what, bool target) {
  const py::dict fields = object.attr("__cuda_array_interface__");
  if (fields["version"].cast<int>() < 3) {
    refuse(what,
           "its __cuda_array_interface__ is older than version 3 and names no stream; pass an array with DLPack");
  }
  if (fields.contains("mask") && !fields["mask"].is_none()) refuse(what, "a masked array cannot be communicated");
  Memory memory;
  const py::dtype dtype = py::dtype::from_args(fields["typestr"]);
  if (!numpy_type(dtype, &memory.type)) {
    refuse(what, "arrays of type " + std::string(py::str(dtype)) + " cannot be communicated; " + kTypes);
  }
  const py::tuple shape = fields["shape"];
  memory.count = 1;
  for (const py::handle& length : shape) memory.count *= length.cast<uint64_t>();
  if (fields.contains("strides") && !fields["strides"].is_none() && memory.count > 0) {
    const py::tuple strides = fields["strides"];
    int64_t expected = static_cast<int64_t>(dtype.itemsize());
    for (size_t i = shape.size(); i-- > 0;) {
      const auto length = shape[i].cast<int64_t>();
      if (length != 1 && strides[i].cast<int64_t>() != expected) refuse(what, "the array is not contiguous");
      expected *= length;
    }
  }
  const py::tuple data = fields["data"];
  const auto address = data[0].cast<DevicePointer>();
  memory.writable = !data[1].cast<bool>();
  if (target && !memory.writable) refuse(what, "the target is read-only");
  memory.data = reinterpret_cast<char*>(address);
  memory.owner = object;
  if (memory.count == 0) return memory;
  OnGpu place{opened_of(address), false, nullptr, nullptr};
  const py::object stream = fields.contains("stream") ? py::object(fields["stream"]) : py::none();
  place.ordered = !stream.is_none();
  if (place.ordered) place.stream = reinterpret_cast<StreamHandle>(stream.cast<uintptr_t>());
  memory.on_gpu = std::make_shared<OnGpu>(std::move(place));
  return memory;
}

// Whether it is a number, or made of numbers by Python alone: nothing can be written to it.
bool is_value(const py::object& object) {
  return py::isinstance<py::list>(object) || py::isinstance<py::tuple>(object) || PyNumber_Check(object.ptr()) != 0;
}

}  // namespace

std::string ElementType::name() const { return is_complex() ? complex_name(dtype) : ddl::name(dtype); }

ElementType element_type_named(const std::string& name) {
  ElementType type;
  for (const DType real : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
    type = {real, 2};
    if (type.name() == name) return type;
  }
  type.width = 1;
  if (!parse(name.c_str(), &type.dtype)) refuse("dtype", "there is no type '" + name + "'");
  return type;
}

void describe_arrays_of(const py::object& type, py::object function) {
  add(&describers(), type, std::move(function));
}

void describe_host_arrays_of(const py::object& type, py::object function) {
  add(&host_describers(), type, std::move(function));
}

bool is_on_gpu(int kind) { return kind == kDlCuda || kind == kDlCudaManaged; }

Memory memory_of(const py::object& object, const char* what, bool target) {
  if (py::isinstance<py::array>(object))
    return memory_of_numpy(py::reinterpret_borrow<py::array>(object), what, target);
  if (std::optional<Memory> known = described_in_host(object)) return *std::move(known);
  if (py::isinstance<GpuMemory>(object)) return memory_described(object.cast<const GpuMemory&>());
  if (py::hasattr(object, "__dlpack__")) return memory_of_dlpack(object, what, target);
  if (py::hasattr(object, "__cuda_array_interface__")) return memory_of_cuda_interface(object, what, target);
  const std::string a = "a " + std::string(py::str(py::type::of(object).attr("__name__")));
  if (target && is_value(object)) {
    refuse(what,
           a + " cannot be used in place; pass a numpy array or anything with DLPack, or use a verb that returns "
               "a new array");
  }
  if (std::optional<Memory> known = described(object, what, target)) return *std::move(known);
  refuse(what, a + " is no array; pass a numpy array or anything with DLPack");
}

Memory host_memory_of(const py::object& object, const char* what, bool target) {
  Memory memory = memory_of(object, what, target);
  if (memory.on_gpu != nullptr) refuse(what, "the array is on a GPU; copy it to the CPU first");
  return memory;
}

}  // namespace ddl
