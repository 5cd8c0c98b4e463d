// The only way to bind a call that can wait. It holds the interpreter lock while the other ranks may come at any
// moment, and releases it when the wait takes longer. It handles signals during the wait. Afterwards, an error of the
// core becomes a Python exception.
#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "engine/lane.h"

namespace ddl {

class GilCaller final : public Caller {
 public:
  explicit GilCaller(bool sleeps = true) : sleeps_(sleeps) {}
  ~GilCaller() override { take_back(); }
  GilCaller(const GilCaller&) = delete;
  GilCaller& operator=(const GilCaller&) = delete;

  void let_go() override {
    if (released_ == nullptr) released_ = PyEval_SaveThread();
  }
  // Runs Python's signal handlers (main thread only); true if one raised. The exception stays pending.
  bool interrupted() override {
    take_back();
    const bool raised = PyErr_CheckSignals() != 0;
    let_go();
    return raised;
  }
  bool sleeps() const override { return sleeps_; }
  // After the wait: raises what a signal handler raised.
  void finish() {
    take_back();
    if (PyErr_Occurred() != nullptr) throw pybind11::error_already_set();
  }

 private:
  void take_back() {
    // Where the interpreter ends, a thread that is not the main one never comes back from this call: it is unwound
    // from there, and the destructor must not try again.
    if (released_ != nullptr) PyEval_RestoreThread(std::exchange(released_, nullptr));
  }

  const bool sleeps_;
  PyThreadState* released_ = nullptr;
};

}  // namespace ddl
