#include "engine/executor.h"

namespace ddl {

Executor::Executor(int rank, int slot, const Neighbourhood& neighbourhood, Links* links, HandoverChoice* handovers)
    : rank_(rank), slot_(slot), neighbourhood_(neighbourhood), links_(links), handovers_(handovers) {}

void Executor::start(Operation* operation) {
  operation_ = operation;
  piece_ = operation->issued++;
  if (ordered()) ++turn_;
  entered_ = finished_ = tells_end_ = false;
  for (size_t c = 0; c < operation->plan->channels.size(); ++c) channels_[c] = ChannelState{};
  operation->source.store(-1, std::memory_order_relaxed);
  sendings_.clear();
}

bool Executor::progress() {
  bool moved = false;
  const auto& steps = operation_->plan->channels;
  if (!entered_) {
    if (operation_->stage != nullptr) {
      if (!operation_->stage->arrived(piece_)) return false;
      operation_->stage->check();
    }
    if (!previous_turn_read()) return false;
    if (awaits_ends_) note_end_of_timed();
    buffers_.begin(operation_, piece_, turn_, steps.size() == 1 ? &my_post(0, turn_) : nullptr);
    if (buffers_.timed() && piece_ + 1 == operation_->pieces) {
      tickets_[turn_ % 2] = *operation_->handover;
      tells_end_ = awaits_ends_ = true;
    }
    entered_ = entering_ = moved = true;
  }
  bool all_ended = true;
  for (size_t c = 0; c < steps.size(); ++c) {
    moved |= progress_channel(static_cast<int>(c));
    all_ended &= channels_[c].next == steps[c].size();
  }
  for (const Sending& sending : sendings_) {
    if (sending.over()) continue;
    moved |= sending.link->progress();
    all_ended &= sending.over();
  }
  if (all_ended) {
    buffers_.end();
    if (tells_end_) my_post(0, turn_).ended = static_cast<uint64_t>(now_ns());
    finished_ = true;
  }
  entering_ = false;
  wake_neighbours();
  return moved || all_ended;
}

// To look at the others' sleep words, a fence must follow the flag's store, and the fence waits for the flag's cache
// line. So this comes after the first look at the others' flags, whose lines travel at the same time.
void Executor::wake_neighbours() {
  if (!wake_due_) return;
  wake_due_ = false;
  neighbourhood_.wake(neighbourhood_.neighbours(), lane_of_slot(slot_));
}

void Executor::retire() {
  if (operation_->stage != nullptr) operation_->stage->left(piece_);
  history_[turn_ % 2] = operation_->wire;
  if (ordered() && !operation_->plan->notifies && !neighbourhood_.neighbours().empty()) {
    // The others do not know yet that this turn has begun, or that it has ended.
    Post& post = my_post(0, turn_);
    describe(&post);
    post.flag.store(flag_of(turn_, kDonePhase), std::memory_order_release);
    wake_due_ = true;
    wake_neighbours();
  }
  operation_ = nullptr;
}

void Executor::abandon() {
  for (const Sending& sending : sendings_) sending.link->abandon();
  for (size_t c = 0; c < operation_->plan->channels.size(); ++c) {
    if (channels_[c].link != nullptr) channels_[c].link->abandon();
  }
  operation_ = nullptr;
}

// --- channels and steps -------------------------------------------------------------------------------------------

bool Executor::progress_channel(int c) {
  const auto& steps = operation_->plan->channels[static_cast<size_t>(c)];
  ChannelState& state = channels_[static_cast<size_t>(c)];
  bool moved = false;
  while (state.next < steps.size()) {
    const Step& step = steps[state.next];
    if (step.after_sends && !sends_over(c)) return moved;
    size_t done = 1;
    switch (step.kind) {
      case StepKind::kSend:
      case StepKind::kRecv:
      case StepKind::kRecvReduce: {
        const bool ended = run_message(c, step);
        if (!ended) return moved;
        break;
      }
      case StepKind::kReduceFrom:
        if (!run_reduce(c, step, step.fused_with_next ? &steps[state.next + 1] : nullptr)) return moved;
        done = step.fused_with_next ? 2 : 1;
        break;
      case StepKind::kCopyFrom:
        if (!run_copy_from(c, step)) return moved;  // the peer has ended, or failed: the verdict comes
        break;
      case StepKind::kCopyTo:
        if (!run_copy_to(c, step)) return moved;
        break;
      case StepKind::kCopy:
        run_copy(step);
        break;
      case StepKind::kNotify:
        notify(c, step);
        break;
      case StepKind::kAwait:
        if (!awaited(c, step)) return moved;
        break;
    }
    state.next += done;
    moved = true;
  }
  return moved;
}

}  // namespace ddl
