#include "python/call_checks.h"

#include <limits>
#include <string>

namespace ddl {

namespace {

constexpr double kMostSeconds = 1e9;  // more would not fit into nanoseconds

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
  if (!is_collective(number)) {
    throw Error(ErrorKind::kInvalidArgument, "there is no collective number " + std::to_string(number));
  }
  return static_cast<Collective>(number);
}

ReduceOp reduce_op_from(long number) {
  ReduceOp op = ReduceOp::kSum;
  if (number < 0 || number >= kReduceOpCount || !from_wire(static_cast<uint8_t>(number), &op)) {
    throw Error(ErrorKind::kInvalidArgument,
                "op must be one of ddl.Average, Sum, Min, Max, Product; Adasum is for PyTorch and TensorFlow");
  }
  return op;
}

Nanoseconds nanoseconds_from(double seconds, const char* what) {
  if (!(seconds >= 0 && seconds <= kMostSeconds)) {  // written so that it refuses NaN
    refuse(what, std::to_string(seconds) + " is no number of seconds from 0 to 1e9");
  }
  return static_cast<Nanoseconds>(seconds * static_cast<double>(kSecond));
}

void check_root(const Call& call, int rank, int size) {
  const bool from_any = call.collective == Collective::kRecv && size > 1;  // if it names this rank itself
  const bool to_another = is_message(call.collective) && !from_any;
  if (call.root >= 0 && call.root < size && !(to_another && call.root == rank)) return;
  refuse(name(call.collective), std::to_string(call.root) + " is no " + (to_another ? "other rank" : "root") +
                                    " for rank " + std::to_string(rank) + " of a communicator of " +
                                    std::to_string(size));
}

void check_given(const Call& call, bool input, bool output, int rank) {
  const CollectiveTraits& needed = traits(call.collective);
  const auto lacks = [&](const CollectiveBuffer& buffer, bool given) {
    return !given && (buffer.holders == Holders::kAll || (buffer.holders == Holders::kRoot && call.root == rank));
  };
  if (lacks(needed.input, input)) refuse(name(call.collective), "rank " + std::to_string(rank) + " gave no input");
  if (lacks(needed.output, output)) refuse(name(call.collective), "rank " + std::to_string(rank) + " gave no output");
}

void check_lengths(const Call& call, const Memory* input, const Memory* output, int rank, int size) {
  const CollectiveTraits& known = traits(call.collective);
  if (!known.in_blocks()) return;
  const char* const what = name(call.collective);
  const std::vector<uint64_t>& lengths = call.part_lengths;
  const auto me = static_cast<size_t>(rank), ranks = static_cast<size_t>(size);
  // From rank s to rank d: number s * ranks + d.
  const bool by_pair = known.input.content == Content::kBlocks && known.output.content == Content::kBlocks;
  const bool gathers = known.input.content == Content::kBlock;
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
