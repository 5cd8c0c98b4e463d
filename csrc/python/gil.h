// The only way to bind a call that can wait: the interpreter lock is released around it, signals are looked at while
// it waits, and an error of the core becomes a Python exception after it.
#pragma once

#include <pybind11/pybind11.h>

#include "engine/communicator.h"

namespace ddl {

// For Interrupted: runs Python's signal handlers (main thread only); true if one raised. The exception stays pending.
inline bool python_interrupted() {
  pybind11::gil_scoped_acquire gil;
  return PyErr_CheckSignals() != 0;
}

// Waits for `submitted` without the interpreter lock. Returns false if `timeout` (< 0: none) ran out; raises what a
// signal handler raised.
inline bool wait_without_gil(Communicator& communicator, const Submitted& submitted, Nanoseconds timeout) {
  static const Interrupted interrupted = python_interrupted;
  bool done = false;
  {
    pybind11::gil_scoped_release release;
    done = communicator.wait(submitted, timeout, interrupted);
  }
  if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  return done;
}

// Python objects that an operation keeps alive. They may be let go by the progress thread, which must not wait for
// the interpreter: those are put aside and dropped by the next call that holds the lock.
std::shared_ptr<void> keep_alive(pybind11::object object);
void drop_kept();

}  // namespace ddl
