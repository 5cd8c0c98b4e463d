// Binds shared memory: buffers in the arena, and the arenas of other ranks.

#include <pybind11/pybind11.h>

#include "memory/arena.h"
#include "memory/kernel_read.h"
#include "memory/kernel_write.h"
#include "memory/peer_memory.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

// A block of the arena that Python owns. It returns to the arena when its last view is gone.
class SharedBlock {
 public:
  explicit SharedBlock(size_t bytes) : data_(Arena::process().allocate(bytes)), bytes_(bytes) {}
  ~SharedBlock() { Arena::process().free(data_); }
  SharedBlock(const SharedBlock&) = delete;
  SharedBlock& operator=(const SharedBlock&) = delete;
  py::buffer_info buffer() const {
    return {data_, 1, py::format_descriptor<uint8_t>::format(), static_cast<py::ssize_t>(bytes_)};
  }

 private:
  void* const data_;
  const size_t bytes_;
};

}  // namespace

void bind_memory(py::module_& m) {
  py::class_<SharedBlock>(m, "SharedBlock", py::buffer_protocol(),
                          "Bytes in memory that the other ranks of this host can map.")
      .def(py::init<size_t>(), py::arg("bytes"))
      .def_buffer([](SharedBlock& block) { return block.buffer(); });

  py::class_<PeerMemory, std::shared_ptr<PeerMemory>>(m, "PeerMemory",
                                                      "The mapped arena of another rank of this host.")
      .def(py::init<int, size_t, int>(), py::arg("memory_fd"), py::arg("bytes"), py::arg("socket_fd"))
      .def_property_readonly("alive", &PeerMemory::alive)
      .def("close_socket", &PeerMemory::close_socket)
      .def(
          "read",
          [](const PeerMemory& memory, uint64_t offset, size_t bytes) {
            if (offset > memory.size() || bytes > memory.size() - offset) {
              throw Error(ErrorKind::kInvalidArgument, "outside the peer's memory");
            }
            return py::bytes(memory.at(offset), bytes);
          },
          py::arg("offset"), py::arg("bytes"));

  m.def("configure_arena", &Arena::configure, py::arg("bytes"),
        "Set the size of the shared arena (0: as large as physical memory, 256 GiB at least); False if it exists "
        "already.");
  m.def("arena_fd", [] { return Arena::process().fd(); });
  m.def("arena_bytes", [] { return Arena::process().size(); });
  m.def(
      "kernel_reads", [] { return std::make_pair(KernelRead::pays_from(), KernelRead::bytes_read()); },
      "From how many bytes on it pays to have the kernel read a rank's private memory (2^64 - 1: never), and how "
      "many\n"
      "bytes this process has read so.");
  m.def(
      "kernel_writes", [] { return KernelWrite::bytes_written(); },
      "How many bytes this process has had the kernel write to private memory of other ranks.");
  m.def("arena_used", [] { return Arena::process().used(); });
  m.def(
      "arena_offset",
      [](const py::buffer& buffer) {
        const py::buffer_info info = buffer.request();
        const auto bytes = static_cast<size_t>(info.size * info.itemsize);
        if (!Arena::process().contains(info.ptr, bytes))
          throw Error(ErrorKind::kInvalidArgument, "not in shared memory");
        return Arena::process().offset(info.ptr);
      },
      py::arg("buffer"), "Where a buffer lies in the arena; InvalidArgument if it does not.");
}

}  // namespace ddl
