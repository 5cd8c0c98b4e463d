// Binds the native communicator: setting it up, and talking to its agent. Its calls are in bind_calls.cc.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>
#include <tuple>

#include "base/helpers.h"
#include "python/bindings.h"
#include "python/call_checks.h"
#include "python/handle.h"
#include "tls/session.h"

namespace py = pybind11;

namespace ddl {

namespace {

CommunicatorOptions options_of(int rank, int size, double timeout, double spin_us, double yield_us, int connections,
                               uint32_t recorded, int64_t read_from, bool checksums) {
  if (size < 1 || rank < 0 || rank >= size) {
    refuse("Communicator", "rank " + std::to_string(rank) + " of " + std::to_string(size));
  }
  if (connections < 1 || connections > kMostConnections) {
    refuse("Communicator",
           std::to_string(connections) + " connections, which must be 1 to " + std::to_string(kMostConnections));
  }
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = nanoseconds_from(timeout, "timeout");
  options.connections = connections;
  options.recorded = recorded;
  options.read_from = read_from;
  options.checksums = checksums;
  options.patience.spin = nanoseconds_from(spin_us / 1e6, "spin_us");
  options.patience.yield = nanoseconds_from(yield_us / 1e6, "yield_us");
  return options;
}

double seconds(Nanoseconds nanoseconds) { return static_cast<double>(nanoseconds) / static_cast<double>(kSecond); }

const char* type_of(const Report& report) {
  switch (report.type) {
    case Report::Type::kLost:
      return "lost";
    case Report::Type::kStalled:
      return "stalled";
    case Report::Type::kRail:
      return "rail";
    case Report::Type::kFailed:
      break;
  }
  return "failed";
}

void bind_setup(py::class_<Handle, std::shared_ptr<Handle>>& c) {
  c.def(py::init([](int rank, int size, double timeout, double spin_us, double yield_us, int connections,
                    uint32_t recorded, int64_t read_from, bool checksums) {
          return std::make_shared<Handle>(
              options_of(rank, size, timeout, spin_us, yield_us, connections, recorded, read_from, checksums));
        }),
        py::kw_only(), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("spin_us"), py::arg("yield_us"),
        py::arg("connections") = 1, py::arg("recorded") = 64, py::arg("read_from") = -1,
        py::arg("checksums") = false);
  c.def(
      "introduce",
      [](Handle& h, std::string who, std::vector<std::string> rank_names, uint64_t communicator,
         const std::vector<uint32_t>& ranks) {
        h.native().failure().introduce(std::move(who), std::move(rank_names));
        h.native().recorder().introduce(communicator, ranks);
      },
      py::arg("who"), py::arg("rank_names"), py::arg("communicator") = 0, py::arg("ranks") = std::vector<uint32_t>{});
  c.def_property_readonly("board_offset", [](Handle& h) { return h.native().neighbourhood().own_board_offset(); });
  c.def(
      "add_neighbour",
      [](Handle& h, int rank, std::shared_ptr<PeerMemory> memory, uint64_t offset) {
        h.native().neighbourhood().add(rank, std::move(memory), offset);
      },
      py::arg("rank"), py::arg("memory"), py::arg("board_offset"));
  c.def("stuck", [](Handle& h) {
    const py::gil_scoped_release released;
    return h.native().neighbourhood().stuck();
  });
  c.def("deserted", [](Handle& h) { return h.native().neighbourhood().deserted(); });
  c.def(
      "set_timeout",
      [](Handle& h, double seconds) { h.native().set_timeout(nanoseconds_from(seconds, "set_timeout")); },
      py::arg("seconds"));
  c.def_property_readonly("timeout", [](Handle& h) { return seconds(h.native().timeout()); });
  c.def(
      "set_rails",
      [](Handle& h, int rails) {
        if (rails < 1 || rails > kMostConnections) refuse("set_rails", std::to_string(rails) + " rails");
        h.native().set_rails(rails);
      },
      py::arg("rails"));
  c.def(
      "set_silence",
      [](Handle& h, double seconds) { h.native().set_silence(nanoseconds_from(seconds, "set_silence")); },
      py::arg("seconds"));
  c.def(
      "set_helpers",
      [](Handle& h, int helpers) {
        if (helpers < 0 || helpers > Helpers::kMost) refuse("set_helpers", std::to_string(helpers) + " helpers");
        h.native().set_helpers(helpers);
      },
      py::arg("helpers"));
  c.def(
      "add_connection",
      [](Handle& h, int peer, int number, int fd, std::shared_ptr<TlsSession> tls) {
        h.native().add_connection(peer, number, fd, std::move(tls));
      },
      py::arg("peer"), py::arg("number"), py::arg("fd"), py::arg("tls") = std::shared_ptr<TlsSession>());
  c.def(
      "connected",
      [](Handle& h, int peer, int number) {
        if (peer < 0 || peer >= h.native().size()) refuse("connected", "there is no rank " + std::to_string(peer));
        return h.native().connected(peer, number);
      },
      py::arg("peer"), py::arg("number"));
  c.def("set_planner", [](Handle& h, py::object planner) { h.set_planner(std::move(planner)); }, py::arg("planner"));
  c.def(
      "install",
      [](Handle& h, int collective, int root, std::vector<Choice> choices) {
        h.native().install(collective_from(collective), root, std::move(choices));
      },
      py::arg("collective"), py::arg("root"), py::arg("choices"));
  c.def(
      "replace",
      [](Handle& h, int collective, int root, std::vector<Choice> choices) {
        h.native().replace(collective_from(collective), root, std::move(choices));
      },
      py::arg("collective"), py::arg("root"), py::arg("choices"));
  c.def("set_milestone", &Handle::set_milestone, py::arg("submitted"), py::arg("function"));
}

void bind_agent(py::class_<Handle, std::shared_ptr<Handle>>& c) {
  c.def("check", [](Handle& h) { h.native().check(); });
  c.def_property_readonly("failed", [](Handle& h) { return h.native().failure().failed(); });
  c.def_property_readonly("report_fd", [](Handle& h) { return h.native().failure().report_fd(); });
  c.def(
      "set_agent", [](Handle& h, bool listening) { h.native().failure().set_agent(listening); },
      py::arg("listening"));
  c.def("take_report", [](Handle& h) { return h.native().failure().take_report(); });
  c.def(
      "fail",
      [](Handle& h, const std::string& kind, int culprit, const std::string& reason, bool tell) {
        h.native().fail(error_kind(kind), culprit, reason, tell);
      },
      py::arg("kind"), py::arg("culprit"), py::arg("reason"), py::arg("tell"));
  c.def("note_departure", [](Handle& h, int peer) { h.native().failure().note_departure(peer); }, py::arg("peer"));
  c.def("traffic", [](Handle& h) { return h.native().traffic(); });
  c.def("collectives", [](Handle& h) { return h.native().collectives(); });
  c.def("tend", [](Handle& h) { h.native().tend(); });
  c.def_property_readonly("silent_peers", [](Handle& h) { return h.native().silent_peers(); });
  c.def(
      "note_unreachable",
      [](Handle& h, int peer, bool unreachable) { h.native().note_unreachable(peer, unreachable); }, py::arg("peer"),
      py::arg("unreachable"));
  c.def_property_readonly("submitted", [](Handle& h) { return h.native().submitted(); });
  c.def(
      "operation_text", [](Handle& h, uint64_t sequence) { return h.native().operation_text(sequence); },
      py::arg("sequence"));
  c.def(
      "call_text", [](Handle& h, uint64_t sequence) { return h.native().call_text(sequence); }, py::arg("sequence"));
  c.def("sleepers", [](Handle& h) {
    std::vector<std::tuple<uint64_t, uint64_t, int>> sleepers;
    for (const Sleeper& sleeper : h.native().sleepers().list()) {
      sleepers.emplace_back(sleeper.thread, sleeper.sequence, sleeper.needs);
    }
    return sleepers;
  });
  c.def(
      "awaits_gpu", [](Handle& h, uint64_t sequence) { return h.native().awaits_gpu(sequence); },
      py::arg("sequence"));
  c.def_property_readonly("in_use", [](Handle& h) { return h.in_use(); });
  c.def("shutdown", [](Handle& h) { h.shutdown(); });
}

}  // namespace

void bind_communicator(py::module_& m) {
  py::class_<Report>(m, "Report", "What a rank tells its agent.")
      .def_property_readonly("type", &type_of)
      .def_readonly("sequence", &Report::sequence)
      .def_property_readonly("kind", [](const Report& report) { return name(report.kind); })
      .def_readonly("peer", &Report::peer)
      .def_readonly("reason", &Report::reason)
      .def_readonly("operation", &Report::operation)
      .def_readonly("final", &Report::final)
      .def_property_readonly("waited", [](const Report& report) { return seconds(report.waited); })
      .def_readonly("rail", &Report::rail)
      .def_readonly("works", &Report::works);
  py::class_<Totals>(m, "Totals", "What a communicator's collectives have taken so far; times in seconds.")
      .def_readonly("operations", &Totals::operations)
      .def_property_readonly("waited", [](const Totals& totals) { return seconds(totals.waited); })
      .def_property_readonly("under_way", [](const Totals& totals) { return seconds(totals.under_way); });
  py::class_<Handle, std::shared_ptr<Handle>> c(m, "Communicator", "The native side of ddl.Communicator.");
  bind_setup(c);
  bind_calls(m, c);
  bind_native_calls(m, c);
  bind_agent(c);
  m.attr("CHANNELS") = kMaxChannels;
  m.attr("LANE_SMALL") = static_cast<int>(LaneId::kSmall);
  m.attr("LANE_LARGE") = static_cast<int>(LaneId::kLarge);
  m.attr("LANE_POINT_TO_POINT") = static_cast<int>(LaneId::kPointToPoint);
  m.attr("LARGE_SLOTS") = kLargeSlots;
  m.attr("STREAMS") = kStreams;
  m.attr("BOARD_WRITING") = offsetof(Board, writing);  // these are for tests
  m.attr("BOARD_STORING") = offsetof(Board, storing);
  m.attr("BOARD_TAKEN_BACK") = offsetof(Board, taken_back);
  m.attr("VERDICT_PATIENCE") = seconds(Failure::kPatience);
  m.def(
      "shift_clock", [](double by) { clock_shift += static_cast<Nanoseconds>(by * static_cast<double>(kSecond)); },
      py::arg("by"), "Let the core's clock jump ahead by so many seconds. For tests.");
  m.def("submitters", &submitters);
  m.def("stream_of", &stream_of, py::arg("slot"), py::arg("channel"));
}

}  // namespace ddl
