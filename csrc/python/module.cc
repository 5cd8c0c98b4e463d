// The extension module ddl._core: the native core as Python sees it. Private; ddl/_core.pyi has the signatures.

#include "python/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The native core of DDL: runs plans over shared memory and TCP.";
  ddl::bind_errors(m);
  ddl::bind_reduce(m);
  ddl::bind_memory(m);
  ddl::bind_pieces(m);
  ddl::bind_plan(m);
  ddl::bind_device(m);
  ddl::bind_gpu_block(m);
  ddl::bind_encryption(m);
  ddl::bind_communicator(m);
  ddl::bind_recorder(m);
  ddl::bind_throwing(m);
}
