#include "python/call_checks.h"

#include <limits>
#include <string>

namespace ddl {

namespace {

constexpr double kMostSeconds = 1e9;  // more would not fit into nanoseconds

enum class Who : uint8_t { kNobody, kRoot, kAll };

struct Givers {
  Who input, output;
};

Givers givers(Collective collective) {
  switch (collective) {
    case Collective::kAllreduce:
    case Collective::kReducescatter:
    case Collective::kAllgather:
    case Collective::kAlltoall:
      return {Who::kAll, Who::kAll};
    case Collective::kBroadcast:
    case Collective::kScatter:
      return {Who::kRoot, Who::kAll};
    case Collective::kReduce:
    case Collective::kGather:
      return {Who::kAll, Who::kRoot};
    case Collective::kSend:
      return {Who::kAll, Who::kNobody};
    case Collective::kRecv:
      return {Who::kNobody, Who::kAll};
    case Collective::kBarrier:
      break;
  }
  return {Who::kNobody, Who::kNobody};
}

// The sum of `n` lengths, from `first` on. If it does not fit: more than any buffer has.
uint64_t sum(const std::vector<uint64_t>& lengths, size_t first, size_t stride, size_t n) {
  uint64_t total = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t length = lengths.size() == 1 ? lengths[0] : lengths[first + i * stride];
    if (__builtin_add_overflow(total, length, &total)) return std::numeric_limits<uint64_t>::max();
  }
  return total;
}

void check_count(const char* what, const char* which, const Memory* view, uint64_t wanted) {
  if (view == nullptr || view->count == wanted) return;
  refuse(what, std::string(which) + " has " + std::to_string(view->count) + " elements, but the lengths of its " +
                   "blocks sum to " + std::to_string(wanted));
}

}  // namespace

Collective collective_from(long number) {
  if (number < static_cast<long>(Collective::kAllreduce) || number > static_cast<long>(Collective::kRecv)) {
    throw Error(ErrorKind::kInvalidArgument, "there is no collective number " + std::to_string(number));
  }
  return static_cast<Collective>(number);
}

ReduceOp reduce_op_from(long number) {
  ReduceOp op = ReduceOp::kSum;
  if (number < 0 || number >= kReduceOpCount || !from_wire(static_cast<uint8_t>(number), &op)) {
    throw Error(ErrorKind::kInvalidArgument, "op must be one of ddl.Average, Sum, Min, Max, Product");
  }
  return op;
}

Nanoseconds nanoseconds_from(double seconds, const char* what) {
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {  // written so that it refuses NaN
    refuse(what, std::to_string(seconds) + " is no number of seconds from 0 to 1e9");
  }
  return static_cast<Nanoseconds>(seconds * static_cast<double>(kSecond));
}

bool in_blocks(Collective c) {
  return c == Collective::kReducescatter || c == Collective::kAllgather || c == Collective::kAlltoall ||
         c == Collective::kGather || c == Collective::kScatter;
}

void check_root(const Call& call, int rank, int size) {
  const bool to_another = call.collective == Collective::kSend || call.collective == Collective::kRecv;
  if (call.root >= 0 && call.root < size && !(to_another && call.root == rank)) return;
  refuse(name(call.collective), std::to_string(call.root) + " is no " + (to_another ? "other rank" : "root") +
                                    " for rank " + std::to_string(rank) + " of a communicator of " +
                                    std::to_string(size));
}

void check_given(const Call& call, bool input, bool output, int rank) {
  const Givers needed = givers(call.collective);
  const auto lacks = [&](Who who, bool given) {
    return !given && (who == Who::kAll || (who == Who::kRoot && call.root == rank));
  };
  if (lacks(needed.input, input)) refuse(name(call.collective), "rank " + std::to_string(rank) + " gave no input");
  if (lacks(needed.output, output)) refuse(name(call.collective), "rank " + std::to_string(rank) + " gave no output");
}

void check_lengths(const Call& call, const Memory* input, const Memory* output, int rank, int size) {
  if (!in_blocks(call.collective)) return;
  const char* const what = name(call.collective);
  const std::vector<uint64_t>& lengths = call.part_lengths;
  const auto me = static_cast<size_t>(rank), ranks = static_cast<size_t>(size);
  const bool by_pair = call.collective == Collective::kAlltoall;  // from rank s to rank d: number s * ranks + d
  const bool gathers = call.collective == Collective::kAllgather || call.collective == Collective::kGather;
  const size_t parts = by_pair ? ranks * ranks : ranks;
  if (lengths.size() != 1 && lengths.size() != parts) {
    refuse(what, std::to_string(lengths.size()) + " lengths of blocks, where there are " + std::to_string(parts));
  }
  if (by_pair) {
    check_count(what, "input", input, sum(lengths, me * ranks, 1, ranks));
    check_count(what, "output", output, sum(lengths, me, ranks, ranks));
    return;
  }
  const uint64_t own = sum(lengths, me, 1, 1), all = sum(lengths, 0, 1, ranks);
  check_count(what, "input", input, gathers ? own : all);
  check_count(what, "output", output, gathers ? all : own);
}

}  // namespace ddl
