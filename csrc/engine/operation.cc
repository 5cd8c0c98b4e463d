#include "engine/operation.h"

#include <algorithm>

namespace ddl {

void Operation::begin_clock(Nanoseconds now) {
  constexpr Nanoseconds kFirstQuestion = kSecond;  // an operation that takes longer is asked about
  if (started != 0) return;
  started = now;
  next_question = now + std::min(kFirstQuestion, timeout / 2);
}

void Operation::rewind() {
  issued = finished = 0;
  handover.reset();
  started = next_question = 0;
  asked_finally = false;
  next = nullptr;
  work.rewind();
}

std::string Operation::text() const {
  const std::string described = descriptor.text(wire.root);  // which is this rank, of a receive
  const size_t details_begin = described.find('(');
  std::string text = described.substr(0, details_begin);
  if (descriptor.sequence != 0) text += " #" + std::to_string(descriptor.sequence);
  if (!label.empty()) text += " \"" + label + "\"";
  const std::string details = described.substr(details_begin);
  return details == "()" ? text : text + " " + details;
}

}  // namespace ddl
