// Objects kept alive by operations, and where they go when the operation ends on a thread without the interpreter.

#include <mutex>
#include <vector>

#include "python/gil.h"

namespace ddl {

namespace {

std::mutex mutex;
std::vector<PyObject*> put_aside;  // guarded by mutex

}  // namespace

std::shared_ptr<void> keep_alive(pybind11::object object) {
  return {object.release().ptr(), [](void* kept) {
            std::lock_guard<std::mutex> lock(mutex);
            put_aside.push_back(static_cast<PyObject*>(kept));
          }};
}

void drop_kept() {
  std::vector<PyObject*> dropped;
  {
    std::lock_guard<std::mutex> lock(mutex);
    if (put_aside.empty()) return;
    dropped.swap(put_aside);
  }
  for (PyObject* object : dropped) Py_DECREF(object);
}

}  // namespace ddl
