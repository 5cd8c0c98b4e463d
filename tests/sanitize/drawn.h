// The operations that the ranks of ranks_as_threads.cc agree on: what each is, what a rank brings to it, and what
// must come out. Values are whole numbers that depend on operation, rank and place, so that nothing old or misplaced
// looks right.
#pragma once

#include <cstdint>
#include <iterator>
#include <random>

#include "engine/descriptor.h"

namespace ddl::test {

using Value = int64_t;
inline constexpr size_t kCounts[] = {1, 8, 60, 511, 513, 4000, 40000};  // around the limits of lanes and pieces

// What every rank draws alike.
struct Drawn {
  int number = 0;
  Collective collective = Collective::kAllreduce;
  int root = 0;
  size_t count = 1;
  bool shared = true, background = false;
};

inline Drawn draw(int number, int size, std::mt19937* random) {
  const Collective kinds[] = {Collective::kAllreduce, Collective::kAllreduce, Collective::kAllreduce,
                              Collective::kBroadcast, Collective::kReduce,    Collective::kAllgather,
                              Collective::kAlltoall,  Collective::kGather,    Collective::kBarrier,
                              Collective::kSend,      Collective::kScatter,   Collective::kReducescatter};
  Drawn drawn;
  drawn.number = number;
  drawn.collective = kinds[(*random)() % std::size(kinds)];
  drawn.root = static_cast<int>((*random)() % static_cast<unsigned>(size));
  drawn.count = kCounts[(*random)() % std::size(kCounts)];
  if ((*random)() % 4 != 0) drawn.count = kCounts[(*random)() % 4];
  drawn.shared = (*random)() % 3 != 0;
  drawn.background = (*random)() % 2 == 0;
  return drawn;
}

// How many blocks of `count` values a rank brings, and how many it gets.
inline size_t in_blocks(Collective c, size_t size) {
  return c == Collective::kAlltoall || c == Collective::kScatter || c == Collective::kReducescatter ? size : 1;
}
inline size_t out_blocks(Collective c, size_t size) {
  return c == Collective::kAlltoall || c == Collective::kGather || c == Collective::kAllgather ? size : 1;
}

inline Value value(int number, int rank, size_t place) {
  return static_cast<Value>(place * 3 % 97) + (number * 5 + rank * 11) % 1021;
}

// What must stand at place i of the output; false if nothing must.
inline bool expected(const Drawn& drawn, int own, int size, size_t i, Value* want) {
  const bool at_root = own == drawn.root;
  const size_t block = i / drawn.count, place = i % drawn.count;
  const auto from = [&](int rank, size_t at) { return value(drawn.number, rank, at); };
  switch (drawn.collective) {
    case Collective::kReduce:
    case Collective::kAllreduce:
      if (block > 0 || (drawn.collective == Collective::kReduce && !at_root)) return false;
      *want = 0;
      for (int rank = 0; rank < size; ++rank) *want += from(rank, i);
      return true;
    case Collective::kBroadcast:
      *want = from(drawn.root, i);
      return block == 0;
    case Collective::kGather:
    case Collective::kAllgather:
      *want = from(static_cast<int>(block), place);
      return drawn.collective == Collective::kAllgather || at_root;
    case Collective::kAlltoall:
      *want = from(static_cast<int>(block), static_cast<size_t>(own) * drawn.count + place);
      return true;
    case Collective::kSend:
      *want = from((own + size - 1) % size, i);
      return block == 0;
    case Collective::kReducescatter:
      *want = 0;
      for (int rank = 0; rank < size; ++rank) *want += from(rank, static_cast<size_t>(own) * drawn.count + i);
      return block == 0;
    case Collective::kScatter:
      *want = from(drawn.root, static_cast<size_t>(own) * drawn.count + i);
      return block == 0;
    case Collective::kBarrier:
    case Collective::kRecv:
      return false;
  }
  return false;
}

}  // namespace ddl::test
