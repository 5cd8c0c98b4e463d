#include "python/native_calls.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <string>

#include "python/bindings.h"
#include "python/handle.h"

namespace py = pybind11;

namespace ddl {

namespace {

using Operations = std::shared_ptr<Operation>;

// A thread of somebody else's: it holds no lock of Python's, and gets no signals.
class ForeignCaller final : public Caller {
 public:
  void let_go() override {}
  bool interrupted() override { return false; }
  bool sleeps() const override { return true; }
};

Handle& handle_of(void* communicator) { return *static_cast<Handle*>(communicator); }

// Runs `body`; returns whether it has thrown, and writes what.
template <typename Body>
int told(char* text, size_t room, Body body) {
  std::string why;
  try {
    body();
    return 0;
  } catch (const Error& error) {
    why = std::string(name(error.kind())) + ": " + error.what();
  } catch (const std::exception& error) {  // perhaps Python's, from the planner
    why = error.what();
  }
  if (room > 0) {
    const size_t length = std::min(why.size(), room - 1);
    std::memcpy(text, why.data(), length);
    text[length] = 0;
  }
  return 1;
}

int run(void* communicator, const DdlNativeCall* call, char* text, size_t room) {
  return told(text, room, [&] {
    Handle& handle = handle_of(communicator);
    const Operations operation = handle.foreign(*call);
    ForeignCaller caller;
    handle.native().run(operation, &caller);
    operation->work.check();
  });
}

int start(void* communicator, const DdlNativeCall* call, void** work, char* text, size_t room) {
  return told(text, room, [&] {
    Handle& handle = handle_of(communicator);
    const Operations operation = handle.foreign(*call);
    auto begun = std::make_unique<Operations>(operation);
    handle.native().submit(operation);
    *work = begun.release();
  });
}

int wait(void* communicator, void* work, char* text, size_t room) {
  const std::unique_ptr<Operations> begun(static_cast<Operations*>(work));
  return told(text, room, [&] {
    ForeignCaller caller;
    handle_of(communicator).native().wait(**begun, -1, &caller);
    (*begun)->work.check();
  });
}

constexpr DdlNativeCalls kCalls = {run, start, wait};

}  // namespace

void bind_native_calls(py::module_& m, py::class_<Handle, std::shared_ptr<Handle>>& communicator) {
  m.attr("NATIVE_CALLS") = reinterpret_cast<uintptr_t>(&kCalls);
  communicator.def_property_readonly("address", [](Handle& handle) { return reinterpret_cast<uintptr_t>(&handle); });
}

}  // namespace ddl
