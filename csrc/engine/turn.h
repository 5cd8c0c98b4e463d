// Lets the links to one peer send one after the other.
//
// If all sent at once, they would share the wire, all their messages would end at the same moment, and until the
// answers come there would be nothing to send. One after the other they keep the wire as busy, and while the second
// sends, the answer to the first comes.
//
// A link keeps the turn as long as its connection takes bytes now and then. If it takes none, the wire is not the
// reason: the peer does not read there, perhaps because it needs what another link has to send first.
#pragma once

#include "base/clock.h"

namespace ddl {

class Link;

class Turn {
 public:
  static constexpr Nanoseconds kPatience = 5 * kMillisecond;

  bool taken() const { return holder_ != nullptr; }
  bool free_for(const Link* link) const {
    return holder_ == nullptr || holder_ == link || now_ns() - moved_ > kPatience;
  }
  // `link` has sent something. `more`: it has more to send.
  void moved(const Link* link, bool more) {
    holder_ = more ? link : nullptr;
    moved_ = now_ns();
  }
  void give_up(const Link* link) {
    if (holder_ == link) holder_ = nullptr;
  }

 private:
  const Link* holder_ = nullptr;
  Nanoseconds moved_ = 0;
};

}  // namespace ddl
