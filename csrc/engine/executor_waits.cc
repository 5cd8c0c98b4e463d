// What a piece waits for: ranks, and the descriptors to poll for them.
#include <algorithm>

#include "engine/executor.h"

namespace ddl {

bool Executor::sends_over(int c) const {
  return std::all_of(sendings_.begin(), sendings_.end(),
                     [c](const Sending& sending) { return sending.channel != c || sending.over(); });
}

template <typename Visit>
void Executor::visit_awaited(Visit visit) const {
  if (idle() || finished_ || awaits_stage()) return;
  if (!entered_) {
    for (int peer : neighbourhood_.neighbours()) {
      if (visit(peer)) return;
    }
    return;
  }
  const auto& plan_channels = operation_->plan->channels;
  for (size_t c = 0; c < plan_channels.size(); ++c) {
    if (channels_[c].next == plan_channels[c].size()) continue;
    const Step& step = plan_channels[c][channels_[c].next];
    if (step.after_sends && !sends_over(static_cast<int>(c))) continue;
    if (step.from_any() && channels_[c].posted) {
      if (visit(channels_[c].link->peer())) return;
      continue;
    }
    for (int peer : step.peers) {
      if (step.kind == StepKind::kAwait) {
        const Post& post = post_of(peer, static_cast<int>(c), turn_);
        if (post.flag.load(std::memory_order_acquire) >= flag_of(turn_, step.phase)) continue;
      }
      if (visit(peer)) return;
    }
  }
  for (const Sending& sending : sendings_) {
    if (!sending.over() && visit(sending.link->peer())) return;
  }
}

std::vector<int> Executor::waiting_for() const {
  std::vector<int> peers;
  visit_awaited([&](int peer) {
    peers.push_back(peer);
    return false;
  });
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

int Executor::first_awaited() const {
  int first = -1;
  visit_awaited([&](int peer) {
    first = peer;
    return true;
  });
  return first;
}

bool Executor::hears(int peer) const {
  for (size_t c = 0; c < operation_->plan->channels.size(); ++c) {
    const Link* const link = links_->find(peer, stream_of(slot_, static_cast<int>(c)));
    if (link != nullptr && link->open()) return true;
  }
  return false;
}

void Executor::poll_fds(Polled* fds) const {
  if (idle()) return;
  if (awaits_any()) {
    for (int peer : unmatched()->peers) {
      if (Link* const link = links_->find(peer, stream_of(slot_, 0))) link->poll_fds(fds, true);
    }
    return;
  }
  for (size_t c = 0; c < operation_->plan->channels.size(); ++c) {
    if (channels_[c].posted) channels_[c].link->poll_fds(fds);
  }
  for (const Sending& sending : sendings_) {
    if (!sending.over()) sending.link->poll_fds(fds);
  }
}

}  // namespace ddl
