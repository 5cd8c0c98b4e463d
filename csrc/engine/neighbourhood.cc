#include "engine/neighbourhood.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>

#include "base/clock.h"
#include "base/error.h"
#include "base/wake.h"
#include "memory/arena.h"

namespace ddl {

namespace {

constexpr Nanoseconds kLongestCall = 10 * kSecond;  // of the kernel: memory may have to come from a slow disk

// Another one at each call, and one that is hardly to be found in anything else.
uint64_t number_of_board() {
  static std::atomic<uint64_t> boards{0};
  return (KernelRead::own_mark().number[1] + boards.fetch_add(2)) | 1;
}

}  // namespace

Neighbourhood::Neighbourhood(int rank, int size, int64_t read_from)
    : rank_(rank),
      size_(size),
      read_from_(read_from),
      boards_(static_cast<size_t>(size)),
      memories_(static_cast<size_t>(size)),
      marks_(static_cast<size_t>(size)),
      numbers_(static_cast<size_t>(size)) {
  void* memory = Arena::process().allocate(Board::bytes(size_), alignof(Board));
  std::memset(memory, 0, Board::bytes(size_));
  own_board_ = static_cast<Board*>(memory);
  own_board_->mark = KernelRead::own_mark();
  own_board_->gate = gate_.address();
  own_board_->present.store(number_of_board(), std::memory_order_release);
}

Neighbourhood::~Neighbourhood() { Arena::process().free(own_board_); }

uint64_t Neighbourhood::own_board_offset() const { return Arena::process().offset(own_board_); }

void Neighbourhood::add(int rank, std::shared_ptr<PeerMemory> memory, uint64_t board_offset) {
  if (rank == rank_ || rank < 0 || rank >= size_) throw Error(ErrorKind::kInternalError, "a neighbour out of range");
  if (memory == nullptr || !memory->holds(board_offset, Board::bytes(size_), alignof(Board))) {
    throw Error(ErrorKind::kProtocolError, "rank " + std::to_string(rank) + " says that its board lies at " +
                                               std::to_string(board_offset) + ", which is not in its shared memory");
  }
  boards_[rank] = reinterpret_cast<Board*>(memory->at(board_offset));
  memories_[rank] = std::move(memory);
  marks_[rank] = boards_[rank]->mark;
  numbers_[rank] = boards_[rank]->present.load(std::memory_order_acquire);
  if (read_from_ != 0 && memories_[rank]->pid() != 0 &&
      KernelRead::find(memories_[rank]->pid(), marks_[rank]) == KernelRead::Outcome::kDone) {
    const char byte = 1;
    const uint64_t gate = boards_[rank]->gate;
    const bool writes =
        KernelWrite::copy(memories_[rank]->pid(), marks_[rank], gate, gate, &byte, 1) == KernelRead::Outcome::kDone;
    own_board_->can(rank, size_)->store(kCanRead | (writes ? kCanWrite : 0), std::memory_order_release);
  }
  neighbours_.push_back(rank);
  std::sort(neighbours_.begin(), neighbours_.end());
}

bool Neighbourhood::all_neighbours(uint64_t ability, std::atomic<bool>* known) const {
  if (known->load(std::memory_order_relaxed)) return true;
  for (int peer : neighbours_) {
    if ((boards_[peer]->can(rank_, size_)->load(std::memory_order_acquire) & ability) != ability) return false;
  }
  known->store(true, std::memory_order_relaxed);
  return true;
}

bool Neighbourhood::can_read(uint64_t block_bytes) const {
  return read_from_ != 0 && all_neighbours(kCanRead, &read_by_all_) &&
         (read_from_ < 0 || block_bytes >= static_cast<uint64_t>(read_from_));
}

bool Neighbourhood::reads(uint64_t block_bytes) const {
  if (read_from_ == 0 || !all_neighbours(kCanRead, &read_by_all_)) return false;
  return block_bytes >= (read_from_ > 0 ? static_cast<uint64_t>(read_from_) : KernelRead::pays_from());
}

// A rank tells that it takes its memory back before that can be gone.
KernelRead::Outcome Neighbourhood::seen(int peer, KernelRead::Outcome outcome) const {
  const bool failed = boards_[peer]->taken_back.load(std::memory_order_acquire) != 0;
  return outcome == KernelRead::Outcome::kRefused && failed ? KernelRead::Outcome::kGone : outcome;
}

KernelRead::Outcome Neighbourhood::read(int peer, void* to, uint64_t address, uint64_t bytes) const {
  return seen(peer, KernelRead::copy(memories_[peer]->pid(), marks_[peer], to, address, bytes));
}

// Who has closed its gate and then finds no call under way knows that every later call finds the gate closed.
KernelRead::Outcome Neighbourhood::write(int peer, LaneId lane, uint64_t address, const void* from,
                                         uint64_t bytes) const {
  std::atomic<uint32_t>& writing = own_board_->writing[static_cast<size_t>(lane)];
  writing.fetch_add(1, std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const KernelRead::Outcome outcome =
      KernelWrite::copy(memories_[peer]->pid(), marks_[peer], boards_[peer]->gate, address, from, bytes);
  writing.fetch_add(1, std::memory_order_release);
  return seen(peer, outcome);
}

// Who has set taken_back and then finds no store under way knows that every later one is refused.
Neighbourhood::StoreSection::StoreSection(const Neighbourhood& neighbourhood, LaneId lane, const int* peers,
                                          size_t count)
    : storing_(&neighbourhood.own_board_->storing[static_cast<size_t>(lane)]) {
  storing_->fetch_add(1, std::memory_order_seq_cst);
  for (size_t i = 0; i < count; ++i) {
    open_ = open_ && neighbourhood.boards_[peers[i]]->taken_back.load(std::memory_order_seq_cst) == 0;
  }
}

Neighbourhood::StoreSection::~StoreSection() {
  storing_->store(storing_->load(std::memory_order_relaxed) + 1, std::memory_order_release);  // one lane, one driver
}

// A call or a copy takes a millisecond at most. A rank that was stopped behind a call, or has died in it, writes no
// more.
void Neighbourhood::take_back() const {
  own_board_->taken_back.store(1, std::memory_order_seq_cst);
  gate_.close();
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const Nanoseconds until = now_ns() + kLongestCall;
  for (int peer : neighbours_) {
    for (const std::atomic<uint32_t>& writing : boards_[peer]->writing) await_end(peer, writing, until);
    for (const std::atomic<uint32_t>& storing : boards_[peer]->storing) await_end(peer, storing, until);
  }
}

bool Neighbourhood::await_end(int peer, const std::atomic<uint32_t>& word, Nanoseconds until) const {
  const PeerMemory& memory = *memories_[peer];
  const uint32_t begun = word.load(std::memory_order_seq_cst);
  if (begun % 2 == 0) return false;
  const auto ended = [&] { return word.load(std::memory_order_acquire) != begun; };
  while (!ended() && present(peer) && memory.alive() &&
         (memory.pid() == 0 || KernelWrite::may_be_at_work(memory.pid())) && now_ns() < until) {
    ::usleep(50);
  }
  return !ended() && present(peer);
}

std::vector<std::pair<int, int>> Neighbourhood::stuck() const {
  std::vector<std::pair<int, int>> ranks;
  if (own_board_->taken_back.load(std::memory_order_acquire) == 0) return ranks;
  const Nanoseconds until = now_ns() + kLongestCall;
  for (int peer : neighbours_) {
    bool stores = false;
    for (const std::atomic<uint32_t>& storing : boards_[peer]->storing) {
      stores = await_end(peer, storing, until) || stores;
    }
    const PeerMemory& memory = *memories_[peer];
    if (stores && memory.watched() && memory.alive()) ranks.emplace_back(peer, memory.pid());
  }
  return ranks;
}

bool Neighbourhood::deserted() const {
  return std::all_of(neighbours_.begin(), neighbours_.end(),
                     [this](int peer) { return !present(peer) || !memories_[peer]->alive(); });
}

void Neighbourhood::wake(const std::vector<int>& peers, LaneId lane) const {
  const auto which = static_cast<size_t>(lane);
  full_fence(&own_board_->lanes[which].sleeping);
  for (int peer : peers) {
    if (boards_[peer] != nullptr) wake_if_sleeping(&boards_[peer]->lanes[which].sleeping);
  }
}

}  // namespace ddl
