#include "engine/collectives.h"

#include <iterator>

namespace ddl {

namespace {

constexpr CollectiveBuffer kNone{Holders::kNobody, Content::kNothing};
constexpr CollectiveBuffer kWhole{Holders::kAll, Content::kWhole}, kWholeAtRoot{Holders::kRoot, Content::kWhole};
constexpr CollectiveBuffer kBlock{Holders::kAll, Content::kBlock};
constexpr CollectiveBuffer kBlocks{Holders::kAll, Content::kBlocks}, kBlocksAtRoot{Holders::kRoot, Content::kBlocks};

// By number.
constexpr CollectiveTraits kTraits[] = {
    {"unknown operation", kNone, kNone, false, false, Needs::kUnknown},
    {"allreduce", kWhole, kWhole, true, false, Needs::kAll},
    {"reducescatter", kBlocks, kBlock, true, false, Needs::kAllIfBlocksAreEqual},
    {"allgather", kBlock, kBlocks, false, false, Needs::kAllIfBlocksAreEqual},
    {"broadcast", kWholeAtRoot, kWhole, false, true, Needs::kRoot},
    {"alltoall", kBlocks, kBlocks, false, false, Needs::kUnknown},
    {"reduce", kWhole, kWholeAtRoot, true, true, Needs::kUnknown},
    {"gather", kBlock, kBlocksAtRoot, false, true, Needs::kUnknown},
    {"scatter", kBlocksAtRoot, kBlock, false, true, Needs::kUnknown},
    {"barrier", kNone, kNone, false, false, Needs::kAll},
    {"send", kWhole, kNone, false, false, Needs::kUnknown},
    {"recv", kNone, kWhole, false, false, Needs::kUnknown},
};
static_assert(std::size(kTraits) == static_cast<size_t>(Collective::kRecv) + 1, "a collective has no traits");

}  // namespace

const CollectiveTraits& traits(Collective collective) {
  const auto number = static_cast<size_t>(collective);
  return kTraits[number < std::size(kTraits) ? number : 0];
}

bool is_collective(long number) { return number > 0 && number < static_cast<long>(std::size(kTraits)); }

}  // namespace ddl
