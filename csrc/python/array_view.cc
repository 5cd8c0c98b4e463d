#include "python/array_view.h"

#include <pybind11/numpy.h>

#include <string>
#include <utility>

#include "python/dlpack.h"

namespace py = pybind11;

namespace ddl {

namespace {

bool float_of(int bits, DType* dtype) {
  if (bits == 16) return *dtype = DType::kFloat16, true;
  if (bits == 32) return *dtype = DType::kFloat32, true;
  if (bits == 64) return *dtype = DType::kFloat64, true;
  return false;
}

bool integer_of(bool is_signed, int bits, DType* dtype) {
  if (bits == 8) return *dtype = is_signed ? DType::kInt8 : DType::kUInt8, true;
  if (bits == 16) return *dtype = is_signed ? DType::kInt16 : DType::kUInt16, true;
  if (bits == 32) return *dtype = is_signed ? DType::kInt32 : DType::kUInt32, true;
  if (bits == 64) return *dtype = is_signed ? DType::kInt64 : DType::kUInt64, true;
  return false;
}

bool numpy_dtype(const py::dtype& type, DType* dtype) {
  const char order = type.byteorder();
  if (order != '=' && order != '|' && order != '<') return false;
  const int bits = static_cast<int>(type.itemsize()) * 8;
  switch (type.kind()) {
    case 'f':
      return float_of(bits, dtype);
    case 'i':
      return integer_of(true, bits, dtype);
    case 'u':
      return integer_of(false, bits, dtype);
    case 'b':
      return *dtype = DType::kBool, true;
    default:
      break;
  }
  // ml_dtypes registers bfloat16 with numpy as a type of its own.
  if (bits == 16 && std::string(py::str(type)) == "bfloat16") return *dtype = DType::kBFloat16, true;
  return false;
}

bool dlpack_dtype(const DLTensor& tensor, DType* dtype) {
  if (tensor.type_lanes != 1) return false;
  switch (tensor.type_code) {
    case kDlInt:
      return integer_of(true, tensor.type_bits, dtype);
    case kDlUInt:
      return integer_of(false, tensor.type_bits, dtype);
    case kDlFloat:
      return float_of(tensor.type_bits, dtype);
    case kDlBfloat:
      return *dtype = DType::kBFloat16, tensor.type_bits == 16;
    case kDlBool:
      return *dtype = DType::kBool, tensor.type_bits == 8;
    default:
      return false;
  }
}

const char* const kTypes = "use float16, bfloat16, float32, float64, an integer type or bool";

ArrayView view_of_numpy(const py::array& array, const char* what, bool target) {
  ArrayView view;
  const py::dtype type = array.dtype();
  if (!numpy_dtype(type, &view.dtype)) {
    refuse(what, "arrays of type " + std::string(py::str(type)) + " cannot be communicated; " + kTypes);
  }
  if ((array.flags() & py::array::c_style) == 0) {
    refuse(what, target ? "the target is not contiguous, so it cannot be written in place; make it contiguous first"
                        : "the array is not contiguous; pass numpy.ascontiguousarray(x)");
  }
  view.writable = array.writeable();
  if (target && !view.writable) refuse(what, "the target is read-only");
  view.data = static_cast<char*>(const_cast<void*>(array.data()));
  view.count = static_cast<uint64_t>(array.size());
  view.owner = array;
  return view;
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

ArrayView view_of_dlpack(const py::object& object, const char* what, bool target) {
  if (target && py::str(py::type::of(object).attr("__module__")).cast<std::string>().compare(0, 3, "jax") == 0) {
    refuse(what,
           "arrays of JAX cannot be written; pass a copy in another framework's array, or use a call that returns "
           "a new array");
  }
  const py::tuple device = object.attr("__dlpack_device__")();
  const int kind = device[0].cast<int>();
  ArrayView view;
  OnGpu place;
  if (is_on_gpu(kind)) {
    place.gpu = opened(device[1].cast<int>());
  } else if (kind != kDlCpu && kind != kDlCudaHost) {
    refuse(what, "the array is neither in CPU memory nor on a CUDA GPU; copy it to the CPU first");
  }
  const py::object capsule = dlpack_capsule(object, what, &place);
  const auto* tensor = static_cast<const DLTensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw py::error_already_set();
  if (!dlpack_dtype(*tensor, &view.dtype))
    refuse(what, std::string("its element type cannot be communicated; ") + kTypes);
  view.count = 1;
  for (int i = 0; i < tensor->ndim; ++i) view.count *= static_cast<uint64_t>(tensor->shape[i]);
  int64_t expected = 1;
  for (int i = tensor->ndim - 1; i >= 0 && tensor->strides != nullptr && view.count > 0; --i) {
    if (tensor->shape[i] != 1 && tensor->strides[i] != expected) refuse(what, "the array is not contiguous");
    expected *= tensor->shape[i];
  }
  view.data = static_cast<char*>(tensor->data) + tensor->byte_offset;
  view.writable = true;  // DLPack before version 1.0 cannot say
  view.owner = capsule;  // not consumed: its own destructor lets the tensor go
  if (place.gpu != nullptr && view.count > 0) view.on_gpu = std::make_shared<OnGpu>(std::move(place));
  return view;
}

// Version 3 of the CUDA array interface, which names the stream that a reader must wait for.
ArrayView view_of_cuda_interface(const py::object& object, const char* what, bool target) {
  const py::dict fields = object.attr("__cuda_array_interface__");
  if (fields["version"].cast<int>() < 3) {
    refuse(what,
           "its __cuda_array_interface__ is older than version 3 and names no stream; pass an array with DLPack");
  }
  if (fields.contains("mask") && !fields["mask"].is_none()) refuse(what, "a masked array cannot be communicated");
  ArrayView view;
  const py::dtype type = py::dtype::from_args(fields["typestr"]);
  if (!numpy_dtype(type, &view.dtype)) {
    refuse(what, "arrays of type " + std::string(py::str(type)) + " cannot be communicated; " + kTypes);
  }
  const py::tuple shape = fields["shape"];
  view.count = 1;
  for (const py::handle& length : shape) view.count *= length.cast<uint64_t>();
  if (fields.contains("strides") && !fields["strides"].is_none() && view.count > 0) {
    const py::tuple strides = fields["strides"];
    int64_t expected = static_cast<int64_t>(type.itemsize());
    for (size_t i = shape.size(); i-- > 0;) {
      const auto length = shape[i].cast<int64_t>();
      if (length != 1 && strides[i].cast<int64_t>() != expected) refuse(what, "the array is not contiguous");
      expected *= length;
    }
  }
  const py::tuple data = fields["data"];
  const auto address = data[0].cast<DevicePointer>();
  view.writable = !data[1].cast<bool>();
  if (target && !view.writable) refuse(what, "the target is read-only");
  view.data = reinterpret_cast<char*>(address);
  view.owner = object;
  if (view.count == 0) return view;
  OnGpu place{opened_of(address), false, nullptr, nullptr};
  const py::object stream = fields.contains("stream") ? py::object(fields["stream"]) : py::none();
  place.ordered = !stream.is_none();
  if (place.ordered) place.stream = reinterpret_cast<StreamHandle>(stream.cast<uintptr_t>());
  view.on_gpu = std::make_shared<OnGpu>(std::move(place));
  return view;
}

ArrayView view_of_gpu_memory(const GpuMemory& memory) {
  ArrayView view;
  view.data = reinterpret_cast<char*>(memory.address);
  view.count = memory.count;
  view.dtype = memory.dtype;
  view.writable = true;
  view.owner = memory.owner;
  if (view.count == 0) return view;
  view.on_gpu = std::make_shared<OnGpu>(OnGpu{opened_of(memory.address), true, memory.stream, nullptr});
  return view;
}

}  // namespace

bool is_on_gpu(int kind) { return kind == kDlCuda || kind == kDlCudaManaged; }

ArrayView view_anywhere(const py::object& object, const char* what, bool target) {
  if (py::isinstance<py::array>(object))
    return view_of_numpy(py::reinterpret_borrow<py::array>(object), what, target);
  if (py::isinstance<GpuMemory>(object)) return view_of_gpu_memory(object.cast<const GpuMemory&>());
  if (py::hasattr(object, "__dlpack__")) return view_of_dlpack(object, what, target);
  if (py::hasattr(object, "__cuda_array_interface__")) return view_of_cuda_interface(object, what, target);
  refuse(what, "a " + std::string(py::str(py::type::of(object).attr("__name__"))) +
                   " is no array; pass a numpy array or anything with DLPack");
}

ArrayView view_of(const py::object& object, const char* what, bool target) {
  ArrayView view = view_anywhere(object, what, target);
  if (view.on_gpu != nullptr) refuse(what, "the array is on a GPU; copy it to the CPU first");
  return view;
}

}  // namespace ddl
