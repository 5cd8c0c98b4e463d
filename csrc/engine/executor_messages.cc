// Steps of the executor that send and receive.
#include <algorithm>

#include "engine/executor.h"

namespace ddl {

WireCodec Executor::codec() const {
  const Descriptor& d = operation_->descriptor;
  const bool sums = d.op == ReduceOp::kSum || d.op == ReduceOp::kAverage;
  return d.dtype == DType::kFloat32 && sums ? operation_->plan->wire : WireCodec::kNone;
}

char* Executor::residual(BufferId buffer, uint32_t block) const {
  if (operation_->residual == nullptr || codec() != WireCodec::kMxInt8) return nullptr;
  return operation_->residual + buffers_.place(buffer, block);
}

SegmentHeader Executor::header(uint64_t bytes) const {
  const Descriptor& wire = operation_->wire;
  SegmentHeader header;
  header.signature = wire.signature();
  header.count = wire.count;
  header.sequence = wire.sequence;
  header.history = wire.history;
  header.turn = turn_;
  header.codec = static_cast<uint8_t>(codec());
  header.bytes = codec() == WireCodec::kNone ? bytes : coded_bytes(codec(), bytes / sizeof(float));
  return header;
}

Link* Executor::link_to(int c, int peer) {
  std::vector<Link*>& known = known_links_[static_cast<size_t>(c)];
  const auto at = static_cast<size_t>(peer);
  if (known.size() <= at) known.resize(at + 1);
  if (known[at] == nullptr) known[at] = links_->find(peer, stream_of(slot_, c));
  return known[at];
}

const Step* Executor::unmatched() const {
  if (slot_ != kPointToPointSlot || idle() || finished_ || channels_[0].next > 0 || channels_[0].posted)
    return nullptr;
  const Step& message = operation_->plan->channels[0][0];  // the only one of a plan in this lane
  return message.kind == StepKind::kRecv ? &message : nullptr;
}

bool Executor::choose_source(const Step& step) {
  for (int peer : step.peers) {
    Link* const link = link_to(0, peer);
    if (link == nullptr || !link->announced()) continue;
    channels_[0].link = link;
    return true;
  }
  return false;
}

bool Executor::run_message(int c, const Step& step) {
  ChannelState& state = channels_[static_cast<size_t>(c)];
  if (!state.posted) {
    if (step.from_any()) {
      if (!choose_source(step)) return false;
    } else if (state.link == nullptr || state.link->peer() != step.peers[0]) {
      state.link = link_to(c, step.peers[0]);
      if (state.link == nullptr) return false;  // the peer has not connected yet
    }
    uint64_t bytes = 0;
    if (step.kind == StepKind::kSend) {
      parts_.clear();
      for (uint32_t block : step.src_blocks) {
        const Span span = buffers_.span(step.src, block);
        bytes += span.bytes;
        if (span.bytes == 0) continue;
        if (!parts_.empty() && static_cast<char*>(parts_.back().iov_base) + parts_.back().iov_len == span.data) {
          parts_.back().iov_len += span.bytes;
        } else {
          parts_.push_back({span.data, span.bytes});
        }
      }
      char* const dropped = step.final || bytes == 0 ? nullptr : residual(step.src, step.src_blocks[0]);
      const uint64_t message = state.link->send(header(bytes), parts_, dropped);
      const auto known = std::find_if(sendings_.begin(), sendings_.end(),
                                      [&](const Sending& sending) { return sending.link == state.link; });
      if (known == sendings_.end()) {
        sendings_.push_back({state.link, message, c});
      } else {
        known->message = message;
      }
      state.link->progress();
      return true;
    }
    landings_.clear();
    const bool reduces = step.kind == StepKind::kRecvReduce;
    for (size_t i = 0; i < step.dst_blocks.size(); ++i) {
      const Span span = buffers_.span(step.dst, step.dst_blocks[i]);
      bytes += span.bytes;
      if (span.bytes == 0) continue;
      landings_.push_back({span.data, reduces ? buffers_.span(step.src, step.src_blocks[i]).data : nullptr,
                           span.bytes, reduces && step.final ? residual(step.dst, step.dst_blocks[i]) : nullptr});
    }
    const Descriptor& d = operation_->descriptor;
    operation_->source.store(state.link->peer(), std::memory_order_relaxed);
    state.message = state.link->receive(
        header(bytes), landings_,
        {d.element(), d.op, step.final ? operation_->divisor : 1, state.link->peer() < rank_, step.final});
    state.posted = true;
  }
  if (!state.link->received(state.message)) state.link->progress();
  if (!state.link->received(state.message)) return false;
  state.posted = false;
  return true;
}

}  // namespace ddl
