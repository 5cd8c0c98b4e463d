#include "engine/neighbourhood.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/error.h"
#include "base/wake.h"
#include "memory/arena.h"

namespace ddl {

Neighbourhood::Neighbourhood(int rank, int size, int64_t read_from)
    : rank_(rank),
      size_(size),
      read_from_(read_from),
      boards_(static_cast<size_t>(size)),
      memories_(static_cast<size_t>(size)),
      marks_(static_cast<size_t>(size)) {
  void* memory = Arena::process().allocate(Board::bytes(size_), alignof(Board));
  std::memset(memory, 0, Board::bytes(size_));
  own_board_ = static_cast<Board*>(memory);
  own_board_->mark = KernelRead::own_mark();
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
  decltype(ProcessMark::number) number{};
  if (read_from_ != 0 && memories_[rank]->pid() != 0 &&
      read(rank, &number, marks_[rank].address, sizeof number) == KernelRead::Outcome::kDone) {
    own_board_->reads(rank, size_)->store(1, std::memory_order_release);
  }
  neighbours_.push_back(rank);
  std::sort(neighbours_.begin(), neighbours_.end());
}

bool Neighbourhood::read_by_all() const {
  if (read_by_all_.load(std::memory_order_relaxed)) return true;
  for (int peer : neighbours_) {
    if (boards_[peer]->reads(rank_, size_)->load(std::memory_order_acquire) == 0) return false;
  }
  read_by_all_.store(true, std::memory_order_relaxed);
  return true;
}

bool Neighbourhood::can_read(uint64_t block_bytes) const {
  return read_from_ != 0 && read_by_all() && (read_from_ < 0 || block_bytes >= static_cast<uint64_t>(read_from_));
}

bool Neighbourhood::reads(uint64_t block_bytes) const {
  if (read_from_ == 0 || !read_by_all()) return false;
  return block_bytes >= (read_from_ > 0 ? static_cast<uint64_t>(read_from_) : KernelRead::pays_from());
}

void Neighbourhood::wake(const std::vector<int>& peers, LaneId lane) const {
  const auto which = static_cast<size_t>(lane);
  full_fence(&own_board_->lanes[which].sleeping);
  for (int peer : peers) {
    if (boards_[peer] != nullptr) wake_if_sleeping(&boards_[peer]->lanes[which].sleeping);
  }
}

}  // namespace ddl
