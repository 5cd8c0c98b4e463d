// Binds the native plan: built once from the tuples that ddl/plan/lower.py makes, then immutable.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "engine/plan.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

using RemoteTuple = std::tuple<uint32_t, Blocks>;
// kind, src, dst, final, after_sends, phase, peers, src_blocks, dst_blocks, theirs
using StepTuple =
    std::tuple<int, int, int, bool, bool, int, std::vector<int>, Blocks, Blocks, std::vector<RemoteTuple>>;

Step step_from(const StepTuple& t) {
  Step step;
  step.kind = static_cast<StepKind>(std::get<0>(t));
  step.src = static_cast<BufferId>(std::get<1>(t));
  step.dst = static_cast<BufferId>(std::get<2>(t));
  step.final = std::get<3>(t);
  step.after_sends = std::get<4>(t);
  step.phase = static_cast<uint8_t>(std::get<5>(t));
  step.peers = std::get<6>(t);
  step.src_blocks = std::get<7>(t);
  step.dst_blocks = std::get<8>(t);
  for (const auto& [table, blocks] : std::get<9>(t)) step.theirs.push_back({table, blocks});
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
             plan->mine = mine;
             plan->exposed = std::move(exposed);
             plan->wire = static_cast<WireCodec>(wire);
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
