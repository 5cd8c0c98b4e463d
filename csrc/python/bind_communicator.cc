// Binds the native communicator: setting it up, submitting to it, waiting for it, and talking to its agent.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <algorithm>
#include <optional>

#include "engine/communicator.h"
#include "python/array_view.h"
#include "python/bindings.h"
#include "python/gil.h"

namespace py = pybind11;

namespace ddl {

namespace {

// A communicator and the Python function that plans for it: called when an operation needs a plan for the first time.
struct Handle {
  explicit Handle(const CommunicatorOptions& options) : native(std::make_shared<Communicator>(options)) {}
  ~Handle() {
    // In a forked child the copy is left alone for ever: its threads exist in the parent only.
    if (!native->owned()) new std::shared_ptr<Communicator>(native);
  }
  std::shared_ptr<Communicator> native;
  py::object planner = py::none();
};

// What `submit` gives back for asynchronous calls.
struct PyWork {
  std::shared_ptr<Communicator> communicator;
  Submitted submitted;
  py::object result;

  bool done() const { return submitted.work->done(); }
  py::object wait(const std::optional<double>& timeout) const {
    if (timeout && !(*timeout >= 0)) throw Error(ErrorKind::kInvalidArgument, "wait: a timeout is 0 seconds or more");
    constexpr double kLongest = 1e9;  // seconds; more would not fit into nanoseconds
    const Nanoseconds limit =
        timeout ? static_cast<Nanoseconds>(std::min(*timeout, kLongest) * static_cast<double>(kSecond)) : -1;
    if (!wait_without_gil(*communicator, submitted, limit)) {
      throw Error(ErrorKind::kWaitTimeout, "not done after " + std::to_string(*timeout) +
                                               " s; the operation goes on, and nothing is broken: wait again");
    }
    drop_kept();
    submitted.work->check();
    return result;
  }
};

// Everything about one call. Buffers may be None where the rank has none (a non-root of reduce, say).
struct Call {
  Collective collective;
  py::object input, output;
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  std::optional<std::vector<uint64_t>> part_lengths;  // elements of each block; absent: one buffer
  uint64_t bytes = 0;                                 // for the choice of a plan; 0: those of the buffer
  int sizes_for = 0;                                  // see Descriptor
  bool count_differs = false;                         // ranks may rightly pass different numbers of elements
  std::string label;
};

void check_arithmetic(const Call& call, DType dtype) {
  if (call.op == ReduceOp::kAverage && dtype == DType::kBool) {
    throw Error(ErrorKind::kInvalidArgument, "bool has no average; use op=Min (all) or op=Max (any)");
  }
}

Request request_of(const Call& call) {
  Request request;
  std::optional<ArrayView> in, out;
  const bool in_place = call.output.is(call.input);
  if (!call.input.is_none()) in = view_of(call.input, name(call.collective), in_place);
  if (in_place) {
    out = in;
  } else if (!call.output.is_none()) {
    out = view_of(call.output, name(call.collective), true);
  }
  if (in && out && in->dtype != out->dtype) {
    throw Error(ErrorKind::kInvalidArgument, std::string(name(call.collective)) + ": input is " + name(in->dtype) +
                                                 " but the target is " + name(out->dtype));
  }
  if (in && out && !call.part_lengths && in->count != out->count) {
    throw Error(ErrorKind::kInvalidArgument, std::string(name(call.collective)) + ": input has " +
                                                 std::to_string(in->count) + " elements but the target has " +
                                                 std::to_string(out->count));
  }
  const std::optional<ArrayView>& any = in ? in : out;
  Descriptor& d = request.descriptor;
  d.collective = call.collective;
  d.root = call.root;
  d.op = call.op;
  d.sizes_for = static_cast<uint8_t>(call.sizes_for);
  if (any) {
    d.dtype = any->dtype;
    check_arithmetic(call, d.dtype);
    d.count = call.count_differs ? 0 : any->count;
    request.count = any->count;
    request.bytes = call.bytes != 0 ? call.bytes : any->bytes();
  }
  if (call.part_lengths) {
    request.part_lengths = *call.part_lengths;
    if (!call.count_differs && request.part_lengths.size() == 1) d.count = request.part_lengths[0];
  }
  if (in) request.input = in->data;
  if (out) request.output = out->data;
  request.label = call.label;
  return request;
}

Submitted submit(Handle& handle, const Call& call, bool keep) {
  drop_kept();
  Communicator& native = *handle.native;
  native.check();
  Request request = request_of(call);
  if (!native.installed(call.collective, call.root)) {
    handle.planner(static_cast<int>(call.collective), call.root);
  }
  if (keep) request.keep_alive = keep_alive(py::make_tuple(call.input, call.output));
  return native.submit(std::move(request));
}

// Blocking: nothing is kept alive, since the caller's arguments are.
void run(Handle& handle, const Call& call) {
  const Submitted submitted = submit(handle, call, false);
  wait_without_gil(*handle.native, submitted, -1);
  submitted.work->check();
}

std::shared_ptr<PyWork> start(Handle& handle, const Call& call, py::object result) {
  const Submitted submitted = submit(handle, call, true);
  handle.native->start(submitted);
  auto work = std::make_shared<PyWork>();
  work->communicator = handle.native;
  work->submitted = submitted;
  work->result = std::move(result);
  return work;
}

Call make_call(int collective, py::object input, py::object output, int op, int root,
               std::optional<std::vector<uint64_t>> part_lengths, uint64_t bytes, int sizes_for, bool count_differs,
               std::string label) {
  ReduceOp reduce_op = ReduceOp::kSum;
  if (op < 0 || op >= kReduceOpCount || !from_wire(static_cast<uint8_t>(op), &reduce_op)) {
    throw Error(ErrorKind::kInvalidArgument, "op must be one of ddl.Average, Sum, Min, Max, Product");
  }
  return {static_cast<Collective>(collective),
          std::move(input),
          std::move(output),
          reduce_op,
          root,
          std::move(part_lengths),
          bytes,
          sizes_for,
          count_differs,
          std::move(label)};
}

CommunicatorOptions options_of(int rank, int size, double timeout, double spin_us, double yield_us) {
  CommunicatorOptions options;
  options.rank = rank;
  options.size = size;
  options.timeout = static_cast<Nanoseconds>(timeout * static_cast<double>(kSecond));
  options.patience.spin = static_cast<Nanoseconds>(spin_us * kMicrosecond);
  options.patience.yield = static_cast<Nanoseconds>(yield_us * kMicrosecond);
  return options;
}

py::object report_of(const Report& report) {
  const char* type = report.type == Report::Type::kLost      ? "lost"
                     : report.type == Report::Type::kStalled ? "stalled"
                                                             : "failed";
  return py::make_tuple(type, report.sequence, name(report.kind), report.peer, report.reason, report.operation,
                        report.final);
}

void bind_setup(py::class_<Handle>& c) {
  c.def(py::init([](int rank, int size, double timeout, double spin_us, double yield_us) {
          return std::make_unique<Handle>(options_of(rank, size, timeout, spin_us, yield_us));
        }),
        py::kw_only(), py::arg("rank"), py::arg("size"), py::arg("timeout"), py::arg("spin_us"), py::arg("yield_us"));
  c.def(
      "introduce",
      [](Handle& h, std::string who, std::vector<std::string> rank_names) {
        h.native->failure().introduce(std::move(who), std::move(rank_names));
      },
      py::arg("who"), py::arg("rank_names"));
  c.def_property_readonly("board_offset", [](Handle& h) { return h.native->neighbourhood().my_offset(); });
  c.def(
      "add_neighbour",
      [](Handle& h, int rank, std::shared_ptr<PeerMemory> memory, uint64_t offset) {
        h.native->neighbourhood().add(rank, std::move(memory), offset);
      },
      py::arg("rank"), py::arg("memory"), py::arg("board_offset"));
  c.def(
      "add_connection", [](Handle& h, int peer, int stream, int fd) { h.native->add_connection(peer, stream, fd); },
      py::arg("peer"), py::arg("stream"), py::arg("fd"));
  c.def(
      "connected", [](Handle& h, int peer, int stream) { return h.native->connected(peer, stream); }, py::arg("peer"),
      py::arg("stream"));
  c.def("set_planner", [](Handle& h, py::object planner) { h.planner = std::move(planner); }, py::arg("planner"));
  using ChoiceTuple = std::tuple<uint64_t, int, uint64_t, std::shared_ptr<Plan>>;
  c.def(
      "install",
      [](Handle& h, int collective, int root, const std::vector<ChoiceTuple>& lines) {
        std::vector<Choice> choices;
        for (const auto& [max_bytes, lane, piece_bytes, plan] : lines) {
          choices.push_back({max_bytes, static_cast<LaneId>(lane), piece_bytes, plan});
        }
        h.native->install(static_cast<Collective>(collective), root, std::move(choices));
      },
      py::arg("collective"), py::arg("root"), py::arg("choices"));
}

void bind_calls(py::class_<Handle>& c) {
  // The fast way, for the call that matters most.
  c.def(
      "allreduce",
      [](Handle& h, py::object input, py::object output, int op) {
        run(h, make_call(static_cast<int>(Collective::kAllreduce), std::move(input), output, op, 0, std::nullopt, 0,
                         0, false, std::string()));
        return output;
      },
      py::arg("input"), py::arg("output"), py::arg("op"));
  const auto arguments = [](auto&& def, const char* name, auto function) {
    def(name, function, py::arg("collective"), py::arg("input"), py::arg("output"), py::kw_only(), py::arg("op") = 0,
        py::arg("root") = 0, py::arg("part_lengths") = py::none(), py::arg("bytes") = 0, py::arg("sizes_for") = 0,
        py::arg("count_differs") = false, py::arg("label") = "", py::arg("result") = py::none());
  };
  const auto def = [&c](auto&&... args) { c.def(std::forward<decltype(args)>(args)...); };
  using Lengths = std::optional<std::vector<uint64_t>>;
  arguments(def, "run",
            [](Handle& h, int collective, py::object input, py::object output, int op, int root, Lengths lengths,
               uint64_t bytes, int sizes_for, bool differs, std::string label, py::object result) {
              run(h, make_call(collective, std::move(input), std::move(output), op, root, std::move(lengths), bytes,
                               sizes_for, differs, std::move(label)));
              return result;
            });
  arguments(def, "start",
            [](Handle& h, int collective, py::object input, py::object output, int op, int root, Lengths lengths,
               uint64_t bytes, int sizes_for, bool differs, std::string label, py::object result) {
              return start(h,
                           make_call(collective, std::move(input), std::move(output), op, root, std::move(lengths),
                                     bytes, sizes_for, differs, std::move(label)),
                           std::move(result));
            });
}

void bind_agent(py::class_<Handle>& c) {
  c.def("check", [](Handle& h) { h.native->check(); });
  c.def_property_readonly("failed", [](Handle& h) { return h.native->failure().failed(); });
  c.def_property_readonly("report_fd", [](Handle& h) { return h.native->failure().report_fd(); });
  c.def(
      "set_agent", [](Handle& h, bool listening) { h.native->failure().set_agent(listening); }, py::arg("listening"));
  c.def("take_report", [](Handle& h) -> py::object {
    const std::optional<Report> report = h.native->failure().take_report();
    return report ? report_of(*report) : py::none();
  });
  c.def(
      "fail",
      [](Handle& h, const std::string& kind, int culprit, const std::string& reason, bool tell) {
        h.native->fail(error_kind(kind), culprit, reason, tell);
      },
      py::arg("kind"), py::arg("culprit"), py::arg("reason"), py::arg("tell"));
  c.def("traffic", [](Handle& h) { return h.native->traffic(); });
  c.def_property_readonly("submitted", [](Handle& h) { return h.native->submitted(); });
  c.def(
      "operation_text", [](Handle& h, uint64_t sequence) { return h.native->operation_text(sequence); },
      py::arg("sequence"));
  c.def("shutdown", [](Handle& h) {
    if (!h.native->owned()) return;
    {
      py::gil_scoped_release release;
      h.native->shutdown();
    }
    drop_kept();
    h.planner = py::none();
  });
}

}  // namespace

void bind_communicator(py::module_& m) {
  py::class_<PyWork, std::shared_ptr<PyWork>>(m, "Work", "An operation under way; see ddl.Work.")
      .def("done", &PyWork::done, "Return whether it has ended, well or not. Does not block.")
      .def("wait", &PyWork::wait, py::arg("timeout") = py::none(),
           "Wait until the operation has ended and return its result.\n\n"
           "timeout: seconds; None waits for the operation's own deadline. Raises WaitTimeout if it ran out (the\n"
           "operation goes on), or the error that the operation ended with.");
  py::class_<Handle> c(m, "Communicator", "The native side of ddl.Communicator.");
  bind_setup(c);
  bind_calls(c);
  bind_agent(c);
  m.attr("CHANNELS") = kMaxChannels;
  m.attr("LANE_SMALL") = static_cast<int>(LaneId::kSmall);
  m.attr("LANE_LARGE") = static_cast<int>(LaneId::kLarge);
  m.attr("LANE_POINT_TO_POINT") = static_cast<int>(LaneId::kPointToPoint);
  m.attr("LARGE_SLOTS") = kLargeSlots;
  m.def("stream_of", &stream_of, py::arg("slot"), py::arg("channel"));
}

}  // namespace ddl
