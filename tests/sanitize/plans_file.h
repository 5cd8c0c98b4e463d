// Reads the plans that threads.py wrote: numbers in the order of Plan's fields, a list as its length and its
// elements.
#pragma once

#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/communicator.h"

namespace ddl::test {

// The lines of the selection table of one rank, by collective and root.
using Choices = std::map<std::pair<Collective, int>, std::vector<Choice>>;

class PlansFile {
 public:
  explicit PlansFile(const std::string& path) : in_(path) {}

  // choices[rank]
  std::vector<Choices> read() {
    const auto size = static_cast<int>(number());
    std::vector<Choices> all(static_cast<size_t>(size));
    for (uint64_t n = number(); n > 0; --n) {
      const auto rank = static_cast<int>(number());
      const auto collective = static_cast<Collective>(number());
      const auto root = static_cast<int>(number());
      Choice choice;
      choice.max_bytes = number();
      choice.lane = static_cast<LaneId>(number());
      choice.piece_bytes = number();
      choice.in_flight = static_cast<uint32_t>(number());
      choice.plan = plan(rank, size);
      all[static_cast<size_t>(rank)][{collective, root}].push_back(choice);
    }
    return all;
  }

 private:
  uint64_t number() {
    uint64_t value = 0;
    if (!(in_ >> value)) throw std::runtime_error("the file of plans ends too early, or holds what is no number");
    return value;
  }

  template <class T>
  std::vector<T> list() {
    std::vector<T> values(number());
    for (T& value : values) value = static_cast<T>(number());
    return values;
  }

  Step step() {
    Step step;
    step.kind = static_cast<StepKind>(number());
    step.src = static_cast<BufferId>(number());
    step.dst = static_cast<BufferId>(number());
    step.final = number() != 0;
    step.onto = number() != 0;
    step.after_sends = number() != 0;
    step.phase = static_cast<uint8_t>(number());
    step.peers = list<int>();
    step.src_blocks = list<uint32_t>();
    step.dst_blocks = list<uint32_t>();
    step.remotes.resize(number());
    for (Remote& remote : step.remotes) {
      remote.table = static_cast<uint32_t>(number());
      remote.blocks = list<uint32_t>();
    }
    step.pull = number() != 0;
    return step;
  }

  std::shared_ptr<const Plan> plan(int rank, int size) {
    auto plan = std::make_shared<Plan>();
    plan->split = number() != 0;
    plan->parts = static_cast<uint32_t>(number());
    plan->tables.resize(number());
    for (auto& table : plan->tables) table = list<uint32_t>();
    for (uint32_t& table : plan->own_tables) table = static_cast<uint32_t>(number());
    for (std::vector<bool>& blocks : plan->exposed) {
      for (const uint32_t exposed : list<uint32_t>()) blocks.push_back(exposed != 0);
    }
    for (bool& copied : plan->only_copied) copied = number() != 0;
    for (bool& written : plan->only_written) written = number() != 0;
    plan->channels.resize(number());
    for (auto& steps : plan->channels) {
      steps.resize(number());
      for (Step& entry : steps) entry = step();
    }
    plan->finish(rank, size);
    return plan;
  }

  std::ifstream in_;
};

}  // namespace ddl::test
