#include "engine/descriptor.h"

namespace ddl {

uint64_t extend_history(uint64_t history, const Descriptor& descriptor) {
  // Multiply and fold, word by word. It need not resist an attack.
  for (uint64_t word : {descriptor.signature(), descriptor.count, descriptor.sequence}) {
    history = (history ^ word) * 0x9e3779b97f4a7c15;
    history ^= history >> 32;
  }
  return history >> kHistoryUnused;
}

Descriptor descriptor_from(uint64_t signature, uint64_t count, uint64_t sequence, uint64_t history) {
  Descriptor d;
  d.history = history;
  d.collective = static_cast<Collective>(signature & 0xff);
  d.dtype = static_cast<DType>(signature >> 8 & 0x7f);
  d.pairs = (signature >> kPairsShift & 1) != 0;
  d.op = static_cast<ReduceOp>(signature >> 16 & 0x7f);
  d.widened = (signature >> kWidenedShift & 1) != 0;
  d.sizes_for = static_cast<uint8_t>(signature >> 24 & 0xff);
  d.root = static_cast<int32_t>(signature >> 32);
  d.count = count;
  d.sequence = sequence;
  return d;
}

std::string Descriptor::numbers() const {
  const std::string many = count != 0 ? std::to_string(pairs ? count / 2 : count) + " x " : "";
  return many + (pairs ? complex_name(dtype) : ddl::name(dtype));
}

std::string Descriptor::text(int self) const {
  if (sizes_for != 0) return std::string(name(static_cast<Collective>(sizes_for))) + "(sizes)";
  std::string text = std::string(name(collective)) + "(";
  if (collective != Collective::kBarrier) {
    text += numbers();
    if (traits(collective).reduces) text += std::string(", ") + ddl::name(op);
    if (traits(collective).rooted) text += ", root " + std::to_string(root);
    if (collective == Collective::kSend) text += ", to rank " + std::to_string(root);
    if (collective == Collective::kRecv)
      text += root == self ? ", from any rank" : ", from rank " + std::to_string(root);
  }
  text += ")";
  return text;
}

}  // namespace ddl
