// Binds the native plan: built once from the tuples that ddl/plan/lower.py makes, then immutable.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "engine/board.h"
#include "engine/plan.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

using RemoteTuple = std::tuple<uint32_t, Blocks>;
// kind, src, dst, final, after_sends, phase, peers, src_blocks, dst_blocks, theirs
using StepTuple =
    std::tuple<int, int, int, bool, bool, int, std::vector<int>, Blocks, Blocks, std::vector<RemoteTuple>>;

// `number` as one of an enumeration of those from `first` to `last`.
template <typename Enum>
Enum one_of(int number, Enum first, Enum last, const char* what) {
  if (number < static_cast<int>(first) || number > static_cast<int>(last)) {
    throw Error(ErrorKind::kInternalError, std::string("malformed plan: ") + what + " " + std::to_string(number));
  }
  return static_cast<Enum>(number);
}

Step step_from(const StepTuple& t) {
  Step step;
  step.kind = one_of(std::get<0>(t), StepKind::kSend, StepKind::kAwait, "kind of step");
  step.src = one_of(std::get<1>(t), BufferId::kInput, BufferId::kScratch, "buffer");
  step.dst = one_of(std::get<2>(t), BufferId::kInput, BufferId::kScratch, "buffer");
  step.final = std::get<3>(t);
  step.after_sends = std::get<4>(t);
  step.phase = static_cast<uint8_t>(one_of(std::get<5>(t), 0, static_cast<int>(kDonePhase) - 1, "phase"));
  step.peers = std::get<6>(t);
  step.src_blocks = std::get<7>(t);
  step.dst_blocks = std::get<8>(t);
  for (const auto& [table, blocks] : std::get<9>(t)) step.remotes.push_back({table, blocks});
  return step;
}

}  // namespace

void bind_plan(py::module_& m) {
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan", "A plan as the native executor runs it.")
      .def(py::init([](int rank, int size, bool split, uint32_t parts, std::vector<std::vector<uint32_t>> tables,
                       std::array<uint32_t, kBuffers> mine, std::array<std::vector<bool>, kBuffers> exposed,
                       const std::vector<std::vector<StepTuple>>& channels, int wire) {
             auto plan = std::make_shared<Plan>();
             plan->split = split;
             plan->parts = parts;
             plan->tables = std::move(tables);
             plan->own_tables = mine;
             plan->exposed = std::move(exposed);
             plan->wire = one_of(wire, WireCodec::kNone, WireCodec::kMxInt8, "codec");
             for (const auto& steps : channels) {
               auto& lowered = plan->channels.emplace_back();
               for (const StepTuple& step : steps) lowered.push_back(step_from(step));
             }
             plan->finish(rank, size);
             return plan;
           }),
           py::kw_only(), py::arg("rank"), py::arg("size"), py::arg("split"), py::arg("parts"), py::arg("tables"),
           py::arg("mine"), py::arg("exposed"), py::arg("channels"), py::arg("wire") = 0);
}

}  // namespace ddl
