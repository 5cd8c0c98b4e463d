// Binds the native plan, which ddl/plan/lower.py makes, and the lines of the selection table. Immutable.

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <string>

#include "engine/board.h"
#include "engine/communicator.h"
#include "engine/plan.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace ddl {

namespace {

// `number` as a member of an enumeration whose members are `first` to `last`.
template <typename Enum>
Enum one_of(int number, Enum first, Enum last, const char* what) {
  if (number < static_cast<int>(first) || number > static_cast<int>(last)) {
    throw Error(ErrorKind::kInternalError, std::string("malformed plan: ") + what + " " + std::to_string(number));
  }
  return static_cast<Enum>(number);
}

Step make_step(int kind, int src, int dst, bool final, bool onto, bool after_sends, int phase, std::vector<int> peers,
               Blocks src_blocks, Blocks dst_blocks, std::vector<Remote> remotes, bool pull) {
  Step step;
  step.kind = one_of(kind, StepKind::kSend, StepKind::kAwait, "kind of step");
  step.src = one_of(src, BufferId::kInput, BufferId::kScratch, "buffer");
  step.dst = one_of(dst, BufferId::kInput, BufferId::kScratch, "buffer");
  step.final = final;
  step.onto = onto;
  step.after_sends = after_sends;
  step.phase = static_cast<uint8_t>(one_of(phase, 0, static_cast<int>(kDonePhase) - 1, "phase"));
  step.peers = std::move(peers);
  step.src_blocks = std::move(src_blocks);
  step.dst_blocks = std::move(dst_blocks);
  step.remotes = std::move(remotes);
  step.pull = pull;
  return step;
}

std::shared_ptr<Plan> make_plan(int rank, int size, bool split, uint32_t parts,
                                std::vector<std::vector<uint32_t>> tables, std::array<uint32_t, kBuffers> own_tables,
                                std::array<std::vector<bool>, kBuffers> exposed,
                                std::vector<std::vector<Step>> channels, int wire,
                                std::array<bool, kBuffers> only_copied, std::array<bool, kBuffers> only_written) {
  auto plan = std::make_shared<Plan>();
  plan->split = split;
  plan->parts = parts;
  plan->tables = std::move(tables);
  plan->own_tables = own_tables;
  plan->exposed = std::move(exposed);
  plan->only_copied = only_copied;
  plan->only_written = only_written;
  plan->channels = std::move(channels);
  plan->wire = one_of(wire, WireCodec::kNone, WireCodec::kMxInt8, "codec");
  plan->finish(rank, size);
  return plan;
}

Choice make_choice(uint64_t max_bytes, int lane, uint64_t piece_bytes, uint32_t in_flight, std::shared_ptr<Plan> plan,
                   std::string name) {
  return {max_bytes,       one_of(lane, LaneId::kSmall, LaneId::kPointToPoint, "lane"),
          piece_bytes,     in_flight,
          std::move(plan), std::move(name)};
}

constexpr const char* kHolders[] = {"nobody", "root", "all"};                 // in the order of Holders
constexpr const char* kContents[] = {"nothing", "whole", "block", "blocks"};  // in the order of Content

py::tuple row_of(const CollectiveBuffer& buffer) {
  return py::make_tuple(kHolders[static_cast<size_t>(buffer.holders)],
                        kContents[static_cast<size_t>(buffer.content)]);
}

py::list collectives() {
  py::list rows;
  for (long number = 1; is_collective(number); ++number) {
    const CollectiveTraits& known = traits(static_cast<Collective>(number));
    rows.append(py::make_tuple(number, known.name) + row_of(known.input) + row_of(known.output) +
                py::make_tuple(known.reduces, known.rooted));
  }
  return rows;
}

}  // namespace

void bind_plan(py::module_& m) {
  m.def("collectives", &collectives,
        "What the core knows of each: number, name, who passes an input and what is in it, the same of the output,\n"
        "whether it reduces, and whether it has a root. For the test that compares it with ddl.plan.collectives.");
  py::class_<Remote>(m, "Remote", "The peer's memory in a step that touches it.")
      .def(py::init([](uint32_t table, Blocks blocks) { return Remote{table, std::move(blocks)}; }), py::arg("table"),
           py::arg("blocks"));
  py::class_<Step>(m, "Step", "A step of a plan as the native executor runs it.")
      .def(py::init(&make_step), py::kw_only(), py::arg("kind"), py::arg("src"), py::arg("dst"), py::arg("final"),
           py::arg("onto"), py::arg("after_sends"), py::arg("phase"), py::arg("peers"), py::arg("src_blocks"),
           py::arg("dst_blocks"), py::arg("remotes"), py::arg("pull") = false);
  py::class_<Plan, std::shared_ptr<Plan>>(m, "Plan", "A plan as the native executor runs it.")
      .def(py::init(&make_plan), py::kw_only(), py::arg("rank"), py::arg("size"), py::arg("split"), py::arg("parts"),
           py::arg("tables"), py::arg("own_tables"), py::arg("exposed"), py::arg("channels"), py::arg("wire") = 0,
           py::arg("only_copied") = std::array<bool, kBuffers>{},
           py::arg("only_written") = std::array<bool, kBuffers>{});
  py::class_<Choice>(m, "Choice", "One line of the selection table.")
      .def(py::init(&make_choice), py::kw_only(), py::arg("max_bytes"), py::arg("lane"), py::arg("piece_bytes"),
           py::arg("in_flight"), py::arg("plan"), py::arg("name") = "");
}

}  // namespace ddl
