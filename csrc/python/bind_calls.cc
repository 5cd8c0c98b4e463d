// Binds the calls of a communicator: those that their arrays describe completely (`call`), prepared operations, and
// all others (`run` and `start` of a Call). The first two are called over and over. They bypass pybind11's handling
// of arguments, which would take longer than a small operation.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <structmember.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <memory>
#include <optional>
#include <string>

#include "python/bindings.h"
#include "python/call_checks.h"
#include "python/handle.h"

namespace py = pybind11;

namespace ddl {

namespace {

Handle& handle_of(PyObject* self) {
  // Python has checked the type: these are methods of it. It has not checked that the object was initialised.
  void* const handle = reinterpret_cast<py::detail::instance*>(self)->get_value_and_holder().value_ptr();
  if (handle == nullptr) throw Error(ErrorKind::kInvalidArgument, "a Communicator whose __init__ was not called");
  return *static_cast<Handle*>(handle);
}

// Runs `body`, which returns a new reference; C++ exceptions become Python's.
template <typename Body>
PyObject* translated(Body body) {
  try {
    return body();
  } catch (py::error_already_set& error) {
    error.restore();
  } catch (...) {
    py::detail::try_translate_exceptions();
  }
  return nullptr;
}

long integer(PyObject* object) {
  const long value = PyLong_AsLong(object);
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();
  return value;
}

// A number that no rank can have becomes -1.
int small_integer(PyObject* object) {
  const long value = integer(object);
  return value < 0 || value > std::numeric_limits<int>::max() ? -1 : static_cast<int>(value);
}

bool wrong_number(Py_ssize_t given, Py_ssize_t wanted) {
  if (given == wanted) return false;
  PyErr_Format(PyExc_TypeError, "%zd arguments, got %zd", wanted, given);
  return true;
}

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

// What `start` returns.
struct PyWork {
  std::shared_ptr<Handle> communicator;
  std::shared_ptr<Operation> operation;
  py::object result;
  py::object arrays;  // kept until `wait`, where that writes the result

  bool done() const { return Handle::done(*operation); }
  int source() const { return operation->source.load(std::memory_order_relaxed); }
  py::object wait(const std::optional<double>& timeout) {
    if (timeout && !(*timeout >= 0)) throw Error(ErrorKind::kInvalidArgument, "wait: a timeout is 0 seconds or more");
    constexpr double kLongest = 1e9;  // seconds; more would not fit into nanoseconds
    const Nanoseconds limit =
        timeout ? static_cast<Nanoseconds>(std::min(*timeout, kLongest) * static_cast<double>(kSecond)) : -1;
    const Nanoseconds end = limit < 0 ? 0 : now_ns() + limit;
    const bool over = communicator->wait(*operation, limit);
    if (over) operation->work.check();
    if (!over || !communicator->finish_stage(*operation, limit < 0 ? -1 : std::max<Nanoseconds>(0, end - now_ns()))) {
      throw Error(ErrorKind::kWaitTimeout, "wait: Timed out after " + std::to_string(*timeout) +
                                               " s; the operation goes on, and nothing is broken: wait again");
    }
    const py::object over_now = std::move(arrays);  // let go last: that may run the user's code
    return result;
  }
  bool can_wait_on() const { return Handle::can_wait_on(*operation); }
  bool wait_on(uintptr_t stream) const { return communicator->wait_on(*operation, stream); }
};

// Python's Call: with its arrays, and what the caller gets.
struct PyCall {
  Call call;
  py::object input, output, result;
};

// --- calls whose arrays say all -----------------------------------------------------------------------------------

// call(collective, input, output, op[, root])
PyObject* call(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  if (n != 4 && wrong_number(n, 5)) return nullptr;
  return translated([&]() -> PyObject* {
    Call call;
    call.collective = collective_from(integer(arguments[0]));
    call.op = reduce_op_from(integer(arguments[3]));
    if (n == 5) call.root = small_integer(arguments[4]);
    Handle& handle = handle_of(self);
    handle.run(handle.reuse_last(call, borrowed(arguments[1]), borrowed(arguments[2])));
    Py_RETURN_NONE;
  });
}

// --- all calls ----------------------------------------------------------------------------------------------------

PyCall make_call(int collective, py::object input, py::object output, py::object result, int op, int root,
                 std::optional<std::vector<uint64_t>> part_lengths, uint64_t bytes, int sizes_for, bool count_differs,
                 py::object residual) {
  Call call;
  call.collective = collective_from(collective);
  call.op = reduce_op_from(op);
  call.root = root;
  call.sizes_for = sizes_for == 0 ? 0 : static_cast<int>(collective_from(sizes_for));
  call.count_differs = count_differs;
  call.bytes = bytes;
  if (part_lengths) call.part_lengths = std::move(*part_lengths);
  call.residual = std::move(residual);
  return {std::move(call), std::move(input), std::move(output), std::move(result)};
}

py::object run(Handle& handle, const PyCall& call, const std::string& label) {
  const auto operation = handle.operation(call.call, call.input, call.output);
  operation->label = label;
  handle.run(operation);
  return call.result;
}

std::shared_ptr<PyWork> start(std::shared_ptr<Handle> handle, const PyCall& call, const std::string& label) {
  const auto operation = handle->operation(call.call, call.input, call.output);
  operation->label = label;
  const py::object arrays = py::make_tuple(call.input, call.output, call.call.residual);
  handle->start(operation, arrays);
  const bool needs_them = operation->stage != nullptr && operation->stage->writes_in_finish();
  return std::make_shared<PyWork>(
      PyWork{std::move(handle), operation, call.result, needs_them ? arrays : py::object(py::none())});
}

// Runs a call that its arrays describe completely, without sleep. Null if it is done; else the operation under way,
// which keeps the arrays.
std::shared_ptr<PyWork> attempt(std::shared_ptr<Handle> handle, const PyCall& call) {
  const auto operation = handle->reuse_last(call.call, call.input, call.output);
  if (handle->run(operation, false)) return nullptr;
  const py::object arrays = py::make_tuple(call.input, call.output);
  return std::make_shared<PyWork>(PyWork{std::move(handle), operation, arrays, arrays});
}

// --- prepared operations ------------------------------------------------------------------------------------------

// A prepared call that works on a copy of its buffer, and is made anew each time: the owner of one on a GPU is asked
// what must come before, and narrow integers are widened.
struct MadeAnew {
  Call call;
  std::string label;
};

struct Prepared {
  PyObject_HEAD;
  vectorcallfunc call;
  PyObject* communicator;
  PyObject* buffer;
  PyObject* residual;                    // kept alive
  std::shared_ptr<Operation> operation;  // null if it is made anew
  std::unique_ptr<MadeAnew> anew;        // null if not
};

PyTypeObject* prepared_type = nullptr;

#ifdef Py_TPFLAGS_DISALLOW_INSTANTIATION
constexpr unsigned int kNoInstantiation = Py_TPFLAGS_DISALLOW_INSTANTIATION;
#else
constexpr unsigned int kNoInstantiation = 0;  // Python 3.9
#endif

PyObject* call_prepared(PyObject* self, PyObject* const*, size_t n, PyObject* keywords) {
  auto* const prepared = reinterpret_cast<Prepared*>(self);
  if (PyVectorcall_NARGS(n) != 0 || keywords != nullptr) {
    PyErr_SetString(PyExc_TypeError, "a prepared operation is called without arguments");
    return nullptr;
  }
  return translated([&]() -> PyObject* {
    Handle& handle = handle_of(prepared->communicator);
    if (prepared->anew != nullptr) {
      const py::object buffer = borrowed(prepared->buffer);
      const auto operation = handle.operation(prepared->anew->call, buffer, buffer);
      operation->label = prepared->anew->label;
      handle.run(operation);
    } else {
      if (!prepared->operation->work.done()) {
        throw Error(ErrorKind::kInvalidState, "this prepared operation is still under way in another thread");
      }
      handle.renew(prepared->operation.get());
      handle.run(prepared->operation);
    }
    Py_INCREF(prepared->buffer);
    return prepared->buffer;
  });
}

// prepare(collective, buffer, op, name, residual)
PyObject* prepare(PyObject* self, PyObject* const* arguments, Py_ssize_t n) {
  if (wrong_number(n, 5)) return nullptr;
  return translated([&]() -> PyObject* {
    const char* const label = PyUnicode_AsUTF8(arguments[3]);
    if (label == nullptr) throw py::error_already_set();
    Call call;
    call.collective = collective_from(integer(arguments[0]));
    call.op = reduce_op_from(integer(arguments[2]));
    call.residual = borrowed(arguments[4]);
    const py::object buffer = borrowed(arguments[1]);
    std::shared_ptr<Operation> operation;
    std::unique_ptr<MadeAnew> anew;
    if (!Handle::on_gpu(buffer)) operation = handle_of(self).prepared(call, buffer);
    if (operation != nullptr) {
      operation->label = label;
    } else {
      anew = std::make_unique<MadeAnew>(MadeAnew{call, label});
    }
    auto* const prepared = reinterpret_cast<Prepared*>(prepared_type->tp_alloc(prepared_type, 0));
    if (prepared == nullptr) throw py::error_already_set();
    new (&prepared->operation) std::shared_ptr<Operation>(std::move(operation));
    new (&prepared->anew) std::unique_ptr<MadeAnew>(std::move(anew));
    prepared->call = call_prepared;
    ++handle_of(self).prepared_operations;
    Py_INCREF(self);
    prepared->communicator = self;
    Py_INCREF(arguments[1]);
    prepared->buffer = arguments[1];
    Py_INCREF(arguments[4]);
    prepared->residual = arguments[4];
    return reinterpret_cast<PyObject*>(prepared);
  });
}

void drop_prepared(PyObject* self) {
  auto* const prepared = reinterpret_cast<Prepared*>(self);
  PyTypeObject* const type = Py_TYPE(self);
  prepared->operation.~shared_ptr();
  prepared->anew.~unique_ptr();
  if (prepared->communicator != nullptr) --handle_of(prepared->communicator).prepared_operations;
  Py_XDECREF(prepared->communicator);
  Py_XDECREF(prepared->buffer);
  Py_XDECREF(prepared->residual);
  type->tp_free(self);
  Py_DECREF(type);
}

PyObject* describe_prepared(PyObject* self) {
  auto* const prepared = reinterpret_cast<Prepared*>(self);
  return translated([&]() -> PyObject* {
    const std::string text = prepared->anew != nullptr
                                 ? std::string(name(prepared->anew->call.collective)) + ", made anew each time"
                                 : prepared->operation->descriptor.text();
    return py::str("<ddl.PreparedOperation: " + text + ">").release().ptr();
  });
}

PyMemberDef prepared_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Prepared, call), READONLY, nullptr},
    {"buffer", T_OBJECT_EX, offsetof(Prepared, buffer), READONLY, "What it works on, and returns."},
    {nullptr, 0, 0, 0, nullptr},
};

PyType_Slot prepared_slots[] = {
    {Py_tp_dealloc, reinterpret_cast<void*>(drop_prepared)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, reinterpret_cast<void*>(describe_prepared)},
    {Py_tp_members, prepared_members},
    {Py_tp_doc, const_cast<char*>("A collective on a buffer, ready to be called again and again: see "
                                  "ddl.Communicator.prepare_allreduce.")},
    {0, nullptr},
};

PyType_Spec prepared_spec = {"ddl._core.PreparedOperation", sizeof(Prepared), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | kNoInstantiation, prepared_slots};

PyMethodDef methods[] = {
    {"call", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(call)), METH_FASTCALL,
     "call(collective, input, output, op[, root])"},
    {"prepare", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(prepare)), METH_FASTCALL,
     "prepare(collective, buffer, op, name, residual)"},
};

}  // namespace

void bind_calls(py::module_& m, py::class_<Handle, std::shared_ptr<Handle>>& communicator) {
  py::class_<PyWork, std::shared_ptr<PyWork>> work(m, "Work", "An operation under way; see ddl.Work.");
  work.def("done", &PyWork::done, "Return whether it has ended, well or not. Does not block.")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none(),
           "Wait until the operation has ended and return its result.\n\n"
           "timeout: seconds; None waits for the operation's own deadline. Raises WaitTimeout if it ran out (the\n"
           "operation goes on), or the error that the operation ended with.");
  work.def_property_readonly("source", &PyWork::source,
                             "Of a receive that has ended: the rank whose message it has taken.");
  work.def("can_wait_on", &PyWork::can_wait_on, "Return whether a stream can wait for the result.");
  work.def(
      "wait_on", &PyWork::wait_on, py::arg("stream"),
      "Let a stream of the array's GPU (the driver's handle) wait for the result, and return True; False if only\n"
      "``wait`` can. Errors that come later are raised by the next call, and the result is undefined then.");
  py::class_<PyCall>(m, "Call", "One call, ready to be run or started.")
      .def(py::init(&make_call), py::arg("collective"), py::arg("input"), py::arg("output"), py::arg("result"),
           py::kw_only(), py::arg("op") = 0, py::arg("root") = 0, py::arg("part_lengths") = py::none(),
           py::arg("bytes") = 0, py::arg("sizes_for") = 0, py::arg("count_differs") = false,
           py::arg("residual") = py::none())
      .def_readonly("result", &PyCall::result);
  communicator.def("run", &run, py::arg("call"), py::arg("label") = "");
  communicator.def("start", &start, py::arg("call"), py::arg("label") = "");
  communicator.def("attempt", &attempt, py::arg("call"));
  prepared_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&prepared_spec));
  if (prepared_type == nullptr) throw py::error_already_set();
  m.attr("PreparedOperation") = py::handle(reinterpret_cast<PyObject*>(prepared_type));
  for (PyMethodDef& method : methods) {
    PyObject* const bound = PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(communicator.ptr()), &method);
    if (bound == nullptr) throw py::error_already_set();
    communicator.attr(method.ml_name) = py::reinterpret_steal<py::object>(bound);
  }
}

}  // namespace ddl
