// What one communicator knows of its ranks' memory: my board, and those of the ranks that share memory with me.
//
// Filled in before the first operation, then only read; the boards themselves are full of atomics.
#pragma once

#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "base/clock.h"
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
  // After a failure: from now on no neighbour writes to this rank's arrays, nor wonders if it cannot read them. Only
  // a rank that was stopped amid its own stores may end these later: see `stuck`.
  void take_back() const;
  // After `take_back`: neighbours, and their process ids (0: unknown), that are there and amid stores to memory of
  // others, which may be this rank's. Waits for those that are not stopped, as `take_back` does. Without that: none.
  // Their ends must be seen still: see PeerMemory::close_socket.
  std::vector<std::pair<int, int>> stuck() const;
  // This rank will not touch memory of others any more.
  void leave() const {
    own_board_->present.store(0, std::memory_order_release);
    std::atomic_thread_fence(std::memory_order_seq_cst);  // before anything else comes to lie there
  }
  // Whether the same holds for all neighbours: they have left as well, or their processes have ended.
  bool deserted() const;

  // A rank has this while it stores to memory of its neighbours. Each lane's driver has one at a time.
  class StoreSection {
   public:
    StoreSection(const Neighbourhood& neighbourhood, LaneId lane, const int* peers, size_t count);
    ~StoreSection();
    StoreSection(const StoreSection&) = delete;
    StoreSection& operator=(const StoreSection&) = delete;
    // False: one of them has taken its memory back, so nothing may be stored.
    bool open() const { return open_; }

   private:
    std::atomic<uint32_t>* const storing_;
    bool open_ = true;
  };

  // Call after having changed something that `peers` may be asleep over.
  void wake(const std::vector<int>& peers, LaneId lane) const;

 private:
  // Whether the peer has not left. What lies where its board was means nothing once it has.
  bool present(int peer) const {
    return boards_[peer]->present.load(std::memory_order_acquire) == numbers_[peer] && numbers_[peer] != 0;
  }
  // Of a copy from or to the peer, as the operation sees it.
  KernelRead::Outcome seen(int peer, KernelRead::Outcome outcome) const;
  // Whether all neighbours can do this with private memory of this rank.
  bool all_neighbours(uint64_t ability, std::atomic<bool>* known) const;
  // Waits until a word of the peer's board is even or another one, unless the peer is stopped or has ended. Returns
  // whether it is still the same odd one.
  bool await_end(int peer, const std::atomic<uint32_t>& word, Nanoseconds until) const;

  const int rank_, size_;
  const int64_t read_from_;
  mutable WriteGate gate_;
  Board* own_board_;
  std::vector<Board*> boards_;
  std::vector<std::shared_ptr<PeerMemory>> memories_;
  std::vector<ProcessMark> marks_;
  std::vector<uint64_t> numbers_;  // the numbers of their boards
  std::vector<int> neighbours_;
  mutable std::atomic<bool> read_by_all_{false}, written_by_all_{false};  // once true, it stays so
};

}  // namespace ddl
