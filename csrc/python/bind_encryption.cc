// Binds the encryption of connections, and checksums.

#include <pybind11/pybind11.h>

#include <algorithm>
#include <memory>
#include <string>

#include "python/bindings.h"
#include "python/gil.h"
#include "tls/relay.h"
#include "tls/session.h"
#include "wire/checksum_session.h"
#include "wire/crc32c.h"

namespace py = pybind11;

namespace ddl {

namespace {

std::shared_ptr<TlsSession> on(int fd, bool server, const std::string& key, bool read_ahead, uint64_t key_lasts) {
  TlsSession::Key fixed{};
  if (key.size() != fixed.size()) throw py::value_error("a key of a connection has 32 bytes");
  std::copy(key.begin(), key.end(), fixed.begin());
  return std::make_shared<TlsSession>(fd, server, fixed, read_ahead, key_lasts);
}

[[noreturn]] void lost(const RecordSession& session) { throw Error(ErrorKind::kPeerLost, session.reason()); }

}  // namespace

void bind_encryption(py::module_& m) {
  using Moved = RecordSession::Moved;
  py::class_<RecordSession, std::shared_ptr<RecordSession>>(m, "RecordSession",
                                                            "One end of a connection whose bytes go in records, on a "
                                                            "descriptor that must outlive it. Of one thread at once.")
      .def_property_readonly(
          "unsent", [](const RecordSession& session) { return session.sealed() > 0; },
          "Whether something that was written waits until the kernel takes more; any write sends it.")
      .def_property_readonly("closed", &RecordSession::closed,
                             "Whether it has ended as connections of processes do that end.")
      .def_property_readonly("error", &RecordSession::error,
                             "The errno by which the kernel has ended it; 0: it has not.")
      .def(
          "write",
          [](RecordSession& session, const py::bytes& data) {
            const std::string text = data;
            size_t done = 0;
            if (session.send() == Moved::kEnded) lost(session);
            if (session.sealed() > 0 || text.empty()) return done;
            if (session.seal(text.data(), text.size(), &done) == Moved::kEnded) lost(session);
            if (session.send() == Moved::kEnded) lost(session);
            return done;
          },
          py::arg("data"),
          "Send what waits, then a record; return how many bytes of data it takes (0: others wait). PeerLost.")
      .def(
          "read",
          [](RecordSession& session, size_t bytes) {
            std::string text(bytes, '\0');
            size_t done = 0;
            if (session.read(&text[0], bytes, &done) == Moved::kEnded) lost(session);
            return py::bytes(text.data(), done);
          },
          py::arg("bytes"), "Read what has come, up to so many bytes, without waiting. PeerLost if it has ended.");
  py::class_<TlsSession, RecordSession, std::shared_ptr<TlsSession>>(m, "TlsSession", "One that encrypts.")
      .def(py::init(&on), py::arg("fd"), py::arg("server"), py::arg("key"), py::arg("read_ahead"),
           py::arg("key_lasts") = TlsSession::kKeyLasts,
           "`read_ahead`: for much data; but then the descriptor does not know of all that can be read.")
      .def("shake_hands", &TlsSession::shake_hands,
           "Agree with the other end as far as that goes without waiting; return whether it is done. ProtocolError.");
  py::class_<ChecksumSession, RecordSession, std::shared_ptr<ChecksumSession>>(
      m, "ChecksumSession", "One whose records have checksums; the core makes its own, this is for tests.")
      .def(py::init<int>(), py::arg("fd"));
  m.def(
      "crc32c",
      [](const py::bytes& data, uint32_t before, bool by_table) {
        const std::string text = data;
        return (by_table ? crc32c_by_table : crc32c)(before, text.data(), text.size());
      },
      py::arg("data"), py::arg("before") = 0, py::arg("by_table") = false,
      "CRC-32C of bytes behind others whose sum is `before`; `by_table`: without the processor's instruction.");
  m.def(
      "relay",
      [](TlsSession* session, int encrypted, int plain) {
        // Not by gil_scoped_release, which ends the process where a thread comes back while the interpreter ends.
        GilCaller caller;
        caller.let_go();
        const std::string why = relay(session, encrypted, plain);
        caller.finish();
        return why;
      },
      py::arg("session"), py::arg("encrypted"), py::arg("plain"),
      "Carry bytes between the session, on the descriptor `encrypted`, and the socket `plain`, until one ends. "
      "Returns "
      "why the session has ended; empty: `plain` was closed.");
  m.def("load_openssl", &OpenSsl::load, py::arg("path"),
        "Load what encrypts, once; empty: the libssl that Python uses. ResourceError says what is missing.");
}

}  // namespace ddl
