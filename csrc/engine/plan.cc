#include "engine/plan.h"

#include <algorithm>
#include <string>

namespace ddl {

namespace {

[[noreturn]] void bad(const std::string& what) { throw Error(ErrorKind::kInternalError, "malformed plan: " + what); }

void check_blocks(const Blocks& blocks, size_t held, const char* which) {
  for (uint32_t block : blocks) {
    if (block >= held) bad(std::string(which) + " block " + std::to_string(block) + " of " + std::to_string(held));
  }
}

bool is_direct(StepKind kind) {
  return kind == StepKind::kReduceFrom || kind == StepKind::kCopyFrom || kind == StepKind::kCopyTo;
}

bool is_message(StepKind kind) {
  return kind == StepKind::kSend || kind == StepKind::kRecv || kind == StepKind::kRecvReduce;
}

// Lists that the executor walks together must have the same length.
void check_pairs(const Step& step) {
  const bool combines =
      step.kind == StepKind::kRecvReduce || step.kind == StepKind::kReduceFrom || step.kind == StepKind::kCopy;
  if (combines && step.src_blocks.size() != step.dst_blocks.size()) bad("source and target of different lengths");
  if (!is_direct(step.kind)) return;
  if (step.peers.empty() || step.remotes.size() != step.peers.size()) bad("a direct step without its peers' side");
  const size_t blocks = step.kind == StepKind::kCopyTo ? step.src_blocks.size() : step.dst_blocks.size();
  for (const Remote& remote : step.remotes) {
    if (remote.blocks.size() != blocks) bad("a direct step whose peers have other blocks");
  }
}

}  // namespace

void Plan::finish(int its_rank, int its_size) {
  rank = its_rank;
  size = its_size;
  if (channels.size() > kMaxChannels) bad(std::to_string(channels.size()) + " channels");
  if (parts < 1) bad("no parts");
  for (const auto& table : tables) check_blocks(table, parts, "part of");
  for (uint32_t table : own_tables) {
    if (table >= tables.size()) bad("table " + std::to_string(table));
  }
  const auto held = [&](BufferId buffer) { return tables[own_tables[static_cast<size_t>(buffer)]].size(); };
  for (size_t b = 0; b < kBuffers; ++b) {
    const size_t blocks = held(static_cast<BufferId>(b));
    if (exposed[b].size() != blocks)
      bad(std::to_string(exposed[b].size()) + " of " + std::to_string(blocks) + " blocks");
    any_exposed[b] = std::find(exposed[b].begin(), exposed[b].end(), true) != exposed[b].end();
  }
  takeable = exposed[0];
  const bool input_copied = any_exposed[0] && only_copied[0];
  for (auto& steps : channels) {
    for (size_t i = 0; i < steps.size(); ++i) {
      Step& step = steps[i];
      for (int peer : step.peers) {
        if (peer < 0 || peer >= size || peer == rank) bad("peer " + std::to_string(peer));
      }
      if (is_message(step.kind) && step.peers.size() != 1 && !step.from_any()) bad("a message needs one peer");
      if (is_message(step.kind) && unit_of(wire).floats > 1 &&
          std::max(step.src_blocks.size(), step.dst_blocks.size()) != 1)
        bad("a message of several blocks, whose coded units would straddle them");
      if (step.onto && step.kind != StepKind::kReduceFrom) {
        bad("a step of kind " + std::to_string(static_cast<int>(step.kind)) + " that adds onto its target");
      }
      if (step.pull && !(step.kind == StepKind::kCopyTo && step.src_blocks.size() == 1) &&
          !(step.kind == StepKind::kCopyFrom && step.dst_blocks.size() > 1)) {
        bad("a step that a peer may do instead, of kind " + std::to_string(static_cast<int>(step.kind)));
      }
      check_blocks(step.src_blocks, held(step.own()), "source");
      check_blocks(step.dst_blocks, held(step.dst), "target");
      check_pairs(step);
      for (const Remote& remote : step.remotes) {
        if (remote.table >= tables.size()) bad("remote table " + std::to_string(remote.table));
        check_blocks(remote.blocks, tables[remote.table].size(), "remote");
      }
      if (step.pull && step.kind == StepKind::kCopyTo) {
        if (step.src != BufferId::kInput) bad("a step that a peer may do instead, of what is no input");
        pulled = takeable[step.src_blocks[0]] = true;
      }
      symmetric = symmetric || (input_copied && step.kind == StepKind::kCopyFrom && step.src == BufferId::kInput);
      given = given || (step.pull && step.kind == StepKind::kCopyFrom);
      messages = messages || is_message(step.kind);
      notifies = notifies || (step.kind == StepKind::kNotify && &steps == &channels.front());
      if (i > 0 && step.kind == StepKind::kCopyTo && steps[i - 1].kind == StepKind::kReduceFrom &&
          steps[i - 1].dst == step.src && steps[i - 1].dst_blocks == step.src_blocks) {
        steps[i - 1].fused_with_next = true;
      }
    }
  }
}

}  // namespace ddl
