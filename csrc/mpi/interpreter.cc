#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "mpi/interpreter.h"

#include <stdexcept>
#include <string>

namespace ddl {
namespace mpi {

namespace {

class Locked {
 public:
  Locked() : state_(PyGILState_Ensure()) {}
  ~Locked() { PyGILState_Release(state_); }
  Locked(const Locked&) = delete;
  Locked& operator=(const Locked&) = delete;

 private:
  const PyGILState_STATE state_;
};

class Reference {
 public:
  explicit Reference(PyObject* object) : object_(object) {}
  ~Reference() { Py_XDECREF(object_); }
  Reference(const Reference&) = delete;
  Reference& operator=(const Reference&) = delete;
  PyObject* get() const { return object_; }

 private:
  PyObject* const object_;
};

[[noreturn]] void raise() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Reference held_type(type), held_value(value), held_traceback(traceback);
  std::string why = type == nullptr ? "an error without a name" : reinterpret_cast<PyTypeObject*>(type)->tp_name;
  const size_t dot = why.rfind('.');
  if (dot != std::string::npos) why.erase(0, dot + 1);
  const Reference text(value == nullptr ? nullptr : PyObject_Str(value));
  const char* const utf8 = text.get() == nullptr ? nullptr : PyUnicode_AsUTF8(text.get());
  if (utf8 != nullptr) why += std::string(": ") + utf8;
  PyErr_Clear();
  throw std::runtime_error(why);
}

// Calls a function of ddl_jax._groups. The caller holds the lock, and owns what is returned.
template <typename... Arguments>
PyObject* called(const char* function, const char* format, Arguments... arguments) {
  const Reference module(PyImport_ImportModule("ddl_jax._groups"));
  if (module.get() == nullptr) raise();
  PyObject* const result = PyObject_CallMethod(module.get(), function, format, arguments...);
  if (result == nullptr) raise();
  return result;
}

void parse(PyObject* tuple, unsigned long long* calls, Group* group) {
  unsigned long long native = 0;
  if (!PyArg_ParseTuple(tuple, "KKii", calls, &native, &group->rank, &group->size)) raise();
  group->native = reinterpret_cast<void*>(native);
}

}  // namespace

Group begin(const DdlNativeCalls** calls) {
  const Locked locked;
  const Reference result(called("begin", nullptr));
  unsigned long long address = 0;
  Group group;
  parse(result.get(), &address, &group);
  *calls = reinterpret_cast<const DdlNativeCalls*>(address);
  return group;
}

Group split(int color, int key, bool in_a_group) {
  const Locked locked;
  const Reference result(called("split", "iii", color, key, in_a_group ? 1 : 0));
  unsigned long long unused = 0;
  Group group;
  parse(result.get(), &unused, &group);
  return group;
}

void forget(const Group& group) {
  const Locked locked;
  const Reference result(called("forget", "K", reinterpret_cast<unsigned long long>(group.native)));
}

}  // namespace mpi
}  // namespace ddl
