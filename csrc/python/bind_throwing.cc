// Lets functions of Python's fail inside C++ code that knows exceptions only: the two collectives that LightGBM asks
// for.
//
// LightGBM takes plain functions without a result. Where its own sockets fail, they throw, and its interface to
// Python catches that. A function that ctypes makes of one of Python's cannot throw, and LightGBM would compute with
// whatever is there; while it bins data, that ends in a crash. So ctypes' functions return a status here, and those
// that LightGBM gets throw where it is not 0. The exception is thrown by a function of LightGBM's own C++ library,
// which Python passes: DDL's may be another one in a wheel. No frame of this file has anything to clean up.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstdint>
#include <utility>

#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

using Reducer = void (*)(const char*, char*, int, int32_t);

// LightGBM calls on the thread that has started it, and keeps its own state for each thread, too.
thread_local int (*reduce_scatter)(char*, int32_t, int, const int32_t*, const int32_t*, int, char*, int32_t,
                                   const Reducer*) = nullptr;
thread_local int (*allgather)(char*, int32_t, const int32_t*, const int32_t*, int, char*, int32_t) = nullptr;
thread_local void (*raise_error)(const char*) = nullptr;

constexpr const char* kReason = "a collective of DDL has failed; DDL's own error says why";

void throwing_reduce_scatter(char* in, int32_t in_bytes, int type_bytes, const int32_t* starts,
                             const int32_t* lengths, int blocks, char* out, int32_t out_bytes,
                             const Reducer& reducer) {
  if (reduce_scatter(in, in_bytes, type_bytes, starts, lengths, blocks, out, out_bytes, &reducer) != 0)
    raise_error(kReason);
}

void throwing_allgather(char* in, int32_t in_bytes, const int32_t* starts, const int32_t* lengths, int blocks,
                        char* out, int32_t out_bytes) {
  if (allgather(in, in_bytes, starts, lengths, blocks, out, out_bytes) != 0) raise_error(kReason);
}

std::pair<uintptr_t, uintptr_t> throwing(uintptr_t scatter, uintptr_t gather, uintptr_t raise) {
  reduce_scatter = reinterpret_cast<decltype(reduce_scatter)>(scatter);
  allgather = reinterpret_cast<decltype(allgather)>(gather);
  raise_error = reinterpret_cast<decltype(raise_error)>(raise);
  return {reinterpret_cast<uintptr_t>(&throwing_reduce_scatter), reinterpret_cast<uintptr_t>(&throwing_allgather)};
}

}  // namespace

void bind_throwing(py::module_& m) {
  m.def("throwing_collectives", &throwing, py::arg("reduce_scatter"), py::arg("allgather"), py::arg("raise_error"),
        "The addresses of functions that call those at these addresses, on this thread, and throw if they fail.");
}

}  // namespace ddl
