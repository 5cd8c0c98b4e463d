// Binds the native communicator: setting it up, submitting to it, waiting for it, and talking to its agent.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "python/bindings.h"
#include "python/call_checks.h"
#include "python/handle.h"

namespace py = pybind11;

namespace ddl {

namespace {

// What `start` gives back.
struct PyWork {
  std::shared_ptr<Handle> communicator;
  std::shared_ptr<Operation> operation;
  py::object result;

  bool done() const { return operation->work.done(); }
  py::object wait(const std::optional<double>& timeout) const {
    if (timeout && !(*timeout >= 0)) throw Error(ErrorKind::kInvalidArgument, "wait: a timeout is 0 seconds or more");
    constexpr double kLongest = 1e9;  // seconds; more would not fit into nanoseconds
    const Nanoseconds limit =
        timeout ? static_cast<Nanoseconds>(std::min(*timeout, kLongest) * static_cast<double>(kSecond)) : -1;
    if (!communicator->wait(*operation, limit)) {
      throw Error(ErrorKind::kWaitTimeout, "wait: Timed out after " + std::to_string(*timeout) +
                                               " s; the operation goes on, and nothing is broken: wait again");
    }
    operation->work.check();
    return result;
  }
};

using Lengths = std::optional<std::vector<uint64_t>>;

Call call_of(int collective, int op, int root, Lengths lengths, uint64_t bytes, int sizes_for, bool count_differs) {
  Call call;
  call.collective = collective_from(collective);
  call.op = reduce_op_from(op);
  call.root = root;
  call.sizes_for = sizes_for == 0 ? 0 : static_cast<int>(collective_from(sizes_for));
  call.count_differs = count_differs;
  call.bytes = bytes;
  if (lengths) call.part_lengths = std::move(*lengths);
  return call;
}

CommunicatorOptions options_of(int rank, int size, double timeout, double spin_us, double yield_us, int connections) {
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
  options.patience.spin = nanoseconds_from(spin_us / 1e6, "spin_us");
  options.patience.yield = nanoseconds_from(yield_us / 1e6, "yield_us");
  return options;
}

py::object report_of(const Report& report) {
  const char* type = report.type == Report::Type::kLost      ? "lost"
                     : report.type == Report::Type::kStalled ? "stalled"
                                                             : "failed";
  return py::make_tuple(type, report.sequence, name(report.kind), report.peer, report.reason, report.operation,
                        report.final);
}

void bind_setup(py::class_<Handle, std::shared_ptr<Handle>>& c) {
  c.def(py::init([](int rank, int size, double timeout, double spin_us, double yield_us, int connections) {
          return std::make_shared<Handle>(options_of(rank, size, timeout, spin_us, yield_us, connections));
        }),
        py::kw_only(), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("spin_us"), py::arg("yield_us"),
        py::arg("connections") = 1);
  c.def(
      "introduce",
      [](Handle& h, std::string who, std::vector<std::string> rank_names) {
        h.native().failure().introduce(std::move(who), std::move(rank_names));
      },
      py::arg("who"), py::arg("rank_names"));
  c.def_property_readonly("board_offset", [](Handle& h) { return h.native().neighbourhood().own_board_offset(); });
  c.def(
      "add_neighbour",
      [](Handle& h, int rank, std::shared_ptr<PeerMemory> memory, uint64_t offset) {
        h.native().neighbourhood().add(rank, std::move(memory), offset);
      },
      py::arg("rank"), py::arg("memory"), py::arg("board_offset"));
  c.def(
      "set_timeout",
      [](Handle& h, double seconds) { h.native().set_timeout(nanoseconds_from(seconds, "set_timeout")); },
      py::arg("seconds"));
  c.def_property_readonly(
      "timeout", [](Handle& h) { return static_cast<double>(h.native().timeout()) / static_cast<double>(kSecond); });
  c.def(
      "set_rails",
      [](Handle& h, int rails) {
        if (rails < 1 || rails > kMostConnections) refuse("set_rails", std::to_string(rails) + " rails");
        h.native().set_rails(rails);
      },
      py::arg("rails"));
  c.def(
      "add_connection", [](Handle& h, int peer, int number, int fd) { h.native().add_connection(peer, number, fd); },
      py::arg("peer"), py::arg("number"), py::arg("fd"));
  c.def(
      "connected",
      [](Handle& h, int peer, int number) {
        if (peer < 0 || peer >= h.native().size()) refuse("connected", "there is no rank " + std::to_string(peer));
        return h.native().connected(peer, number);
      },
      py::arg("peer"), py::arg("number"));
  c.def("set_planner", [](Handle& h, py::object planner) { h.set_planner(std::move(planner)); }, py::arg("planner"));
  using ChoiceTuple = std::tuple<uint64_t, int, uint64_t, uint32_t, std::shared_ptr<Plan>>;
  c.def(
      "install",
      [](Handle& h, int collective, int root, const std::vector<ChoiceTuple>& lines) {
        std::vector<Choice> choices;
        for (const auto& [max_bytes, lane, piece_bytes, in_flight, plan] : lines) {
          if (lane < 0 || lane >= kLanes) refuse("install", "there is no lane " + std::to_string(lane));
          choices.push_back({max_bytes, static_cast<LaneId>(lane), piece_bytes, in_flight, plan});
        }
        h.native().install(collective_from(collective), root, std::move(choices));
      },
      py::arg("collective"), py::arg("root"), py::arg("choices"));
}

// As run_alike, without sleep: None if it is done, else what is under way, which keeps the arrays.
py::object attempt(std::shared_ptr<Handle> h, int collective, const py::object& input, const py::object& output,
                   int op, int root) {
  const auto operation = h->again(call_of(collective, op, root, {}, 0, 0, false), input, output);
  if (h->run(operation, false)) return py::none();
  return py::cast(std::make_shared<PyWork>(PyWork{std::move(h), operation, py::make_tuple(input, output)}));
}

void bind_verbs(py::class_<Handle, std::shared_ptr<Handle>>& c) {
  const auto def = [&c](const char* verb, auto function) {
    c.def(verb, function, py::arg("collective"), py::arg("input"), py::arg("output"), py::kw_only(),
          py::arg("op") = 0, py::arg("root") = 0, py::arg("part_lengths") = py::none(), py::arg("bytes") = 0,
          py::arg("sizes_for") = 0, py::arg("count_differs") = false, py::arg("label") = "",
          py::arg("result") = py::none(), py::arg("residual") = py::none());
  };
  def("run", [](Handle& h, int collective, const py::object& input, const py::object& output, int op, int root,
                Lengths lengths, uint64_t bytes, int sizes_for, bool differs, const std::string& label,
                py::object result, const py::object& residual) {
    Call call = call_of(collective, op, root, std::move(lengths), bytes, sizes_for, differs);
    call.residual = residual;
    const auto operation = h.operation(call, input, output);
    operation->label = label;
    h.run(operation);
    return result;
  });
  def("start", [](std::shared_ptr<Handle> h, int collective, const py::object& input, const py::object& output,
                  int op, int root, Lengths lengths, uint64_t bytes, int sizes_for, bool differs,
                  const std::string& label, py::object result, const py::object& residual) {
    Call call = call_of(collective, op, root, std::move(lengths), bytes, sizes_for, differs);
    call.residual = residual;
    const auto operation = h->operation(call, input, output);
    operation->label = label;
    h->start(operation, py::make_tuple(input, output, residual));
    return std::make_shared<PyWork>(PyWork{std::move(h), operation, std::move(result)});
  });
  c.def("attempt", &attempt, py::arg("collective"), py::arg("input"), py::arg("output"), py::arg("op"),
        py::arg("root"));
}

void bind_agent(py::class_<Handle, std::shared_ptr<Handle>>& c) {
  c.def("check", [](Handle& h) { h.native().check(); });
  c.def_property_readonly("failed", [](Handle& h) { return h.native().failure().failed(); });
  c.def_property_readonly("report_fd", [](Handle& h) { return h.native().failure().report_fd(); });
  c.def(
      "set_agent", [](Handle& h, bool listening) { h.native().failure().set_agent(listening); },
      py::arg("listening"));
  c.def("take_report", [](Handle& h) -> py::object {
    const std::optional<Report> report = h.native().failure().take_report();
    return report ? report_of(*report) : py::none();
  });
  c.def(
      "fail",
      [](Handle& h, const std::string& kind, int culprit, const std::string& reason, bool tell) {
        h.native().fail(error_kind(kind), culprit, reason, tell);
      },
      py::arg("kind"), py::arg("culprit"), py::arg("reason"), py::arg("tell"));
  c.def("left", [](Handle& h, int peer) { h.native().failure().note_departure(peer); }, py::arg("peer"));
  c.def("traffic", [](Handle& h) { return h.native().traffic(); });
  c.def("collectives", [](Handle& h) {
    const Totals totals = h.native().collectives();
    const auto seconds = [](Nanoseconds ns) { return static_cast<double>(ns) / static_cast<double>(kSecond); };
    return py::make_tuple(totals.operations, seconds(totals.waited), seconds(totals.under_way));
  });
  c.def("tend", [](Handle& h) { h.native().tend(); });
  c.def_property_readonly("submitted", [](Handle& h) { return h.native().submitted(); });
  c.def(
      "operation_text", [](Handle& h, uint64_t sequence) { return h.native().operation_text(sequence); },
      py::arg("sequence"));
  c.def_property_readonly("in_use", [](Handle& h) { return h.in_use(); });
  c.def("shutdown", [](Handle& h) { h.shutdown(); });
}

}  // namespace

void bind_communicator(py::module_& m) {
  py::class_<PyWork, std::shared_ptr<PyWork>>(m, "Work", "An operation under way; see ddl.Work.")
      .def("done", &PyWork::done, "Return whether it has ended, well or not. Does not block.")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none(),
           "Wait until the operation has ended and return its result.\n\n"
           "timeout: seconds; None waits for the operation's own deadline. Raises WaitTimeout if it ran out (the\n"
           "operation goes on), or the error that the operation ended with.");
  py::class_<Handle, std::shared_ptr<Handle>> c(m, "Communicator", "The native side of ddl.Communicator.");
  bind_setup(c);
  bind_verbs(c);
  bind_calls(m, c);
  bind_agent(c);
  m.attr("CHANNELS") = kMaxChannels;
  m.attr("LANE_SMALL") = static_cast<int>(LaneId::kSmall);
  m.attr("LANE_LARGE") = static_cast<int>(LaneId::kLarge);
  m.attr("LANE_POINT_TO_POINT") = static_cast<int>(LaneId::kPointToPoint);
  m.attr("LARGE_SLOTS") = kLargeSlots;
  m.attr("STREAMS") = kStreams;
  m.attr("VERDICT_PATIENCE") = static_cast<double>(Failure::kPatience) / kSecond;
  m.def("stream_of", &stream_of, py::arg("slot"), py::arg("channel"));
}

}  // namespace ddl
