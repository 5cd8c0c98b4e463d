// Plays operations that take a given time in each way, and prints one letter for each: s by staging, k by the kernel.
//
//   handover_choice FIRST PHASE...   the way at first: s or k
//     a phase: operations,KiB,ns per KiB by staging,ns per KiB by the kernel
//   Every 7th operation takes a hundred times as long: a rank was interrupted.
#include <cstdio>
#include <deque>
#include <utility>

#include "engine/handover.h"

namespace {

constexpr size_t kInFlight = 2 * ddl::kLargeSlots;  // so many have begun after an operation when its end is known

}  // namespace

int main(int count, char** arguments) {
  using Ticket = ddl::HandoverChoice::Ticket;
  ddl::HandoverChoice choice(true);
  std::deque<std::pair<Ticket, ddl::Nanoseconds>> ends;
  ddl::Nanoseconds now = 1;
  int played = 0;
  for (int i = 2; i < count; ++i) {
    unsigned operations = 0, kib = 0, staging = 0, kernel = 0;
    if (std::sscanf(arguments[i], "%u,%u,%u,%u", &operations, &kib, &staging, &kernel) != 4) return 2;
    for (unsigned n = 0; n < operations; ++n) {
      if (ends.size() >= kInFlight) {
        if (ends.front().first.timed) choice.note_end(ends.front().first, ends.front().second);
        ends.pop_front();
      }
      const Ticket ticket = choice.next(ddl::Collective::kBroadcast, uint64_t{kib} << 10, arguments[1][0] == 'k');
      // It begins before the one before it has ended.
      if (ticket.timed) choice.note_begin(ticket, now > 1000 ? now - 1000 : 1);
      now += ddl::Nanoseconds{kib} * (ticket.by_kernel ? kernel : staging) * (++played % 7 == 0 ? 100 : 1);
      ends.emplace_back(ticket, now);
      std::putchar(ticket.by_kernel ? 'k' : 's');
    }
    std::putchar('\n');
  }
  return 0;
}
