// What one communicator knows of its ranks' memory: my board, and those of the ranks that share memory with me.
//
// Filled in before the first operation, then only read; the boards themselves are full of atomics.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "engine/board.h"
#include "memory/kernel_write.h"
#include "memory/peer_memory.h"

namespace ddl {

class Neighbourhood {
 public:
  // `read_from`: bytes from which neighbours read a private block where it lies; -1: from where that pays; 0: never.
  Neighbourhood(int rank, int size, int64_t read_from);
  ~Neighbourhood();
  Neighbourhood(const Neighbourhood&) = delete;
  Neighbourhood& operator=(const Neighbourhood&) = delete;

  void add(int rank, std::shared_ptr<PeerMemory> memory, uint64_t board_offset);

  Board* own_board() const { return own_board_; }
  uint64_t own_board_offset() const;
  // Null for ranks that do not share memory with me.
  Board* board(int rank) const { return boards_[rank]; }
  const PeerMemory* memory(int rank) const { return memories_[rank].get(); }
  // The ranks that share memory with me, without me, ascending.
  const std::vector<int>& neighbours() const { return neighbours_; }
  // Whether there are both such ranks and others.
  bool mixed() const { return !neighbours_.empty() && static_cast<int>(neighbours_.size()) < size_ - 1; }

  // Whether all neighbours can read private blocks of so many bytes where they lie, and the user has not said no.
  bool can_read(uint64_t block_bytes) const;
  // Whether the user has said that they do so if they can.
  bool must_read() const { return read_from_ > 0; }
  // Whether all neighbours can write to private memory of this rank.
  bool can_be_written() const { return all_neighbours(kCanRead | kCanWrite, &written_by_all_); }
  // Whether that takes less time than with a copy in shared memory, if each rank reads some blocks.
  bool reads(uint64_t block_bytes) const;
  // Copies `bytes` at `address` of a neighbour's private memory. kGone: it has ended, or taken its memory back.
  KernelRead::Outcome read(int peer, void* to, uint64_t address, uint64_t bytes) const;
  // The other way round. By the lane's driver.
  KernelRead::Outcome write(int peer, LaneId lane, uint64_t address, const void* from, uint64_t bytes) const;
  // After a failure: from now on no neighbour writes to this rank's private memory, nor wonders if it cannot read it.
  void take_back() const;

  // Call after having changed something that `peers` may be asleep over.
  void wake(const std::vector<int>& peers, LaneId lane) const;

 private:
  // Of a copy from or to the peer, as the operation sees it.
  KernelRead::Outcome seen(int peer, KernelRead::Outcome outcome) const;
  // Whether all neighbours can do this with private memory of this rank.
  bool all_neighbours(uint64_t ability, std::atomic<bool>* known) const;

  const int rank_, size_;
  const int64_t read_from_;
  mutable WriteGate gate_;
  Board* own_board_;
  std::vector<Board*> boards_;
  std::vector<std::shared_ptr<PeerMemory>> memories_;
  std::vector<ProcessMark> marks_;
  std::vector<int> neighbours_;
  mutable std::atomic<bool> read_by_all_{false}, written_by_all_{false};  // once true, it stays so
};

}  // namespace ddl
