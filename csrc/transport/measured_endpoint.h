// An endpoint that reports the progress of its bytes. A stream over several networks needs this of each one
// (rails/rail.h).
#pragma once

#include "transport/endpoint.h"

namespace ddl {

enum class Acknowledgement {
  kComplete,  // the peer has acknowledged all that was sent
  kPending,   // not yet
  kMissing,   // the same bytes were sent again and again: perhaps nobody hears them
};

class MeasuredEndpoint : public Endpoint {
 public:
  // Bytes per second that it has carried lately; 0: not known.
  virtual double rate() const = 0;
  // Bytes written that the peer's kernel does not have yet.
  virtual size_t queued() const = 0;
  virtual Acknowledgement acknowledgement() const = 0;
};

}  // namespace ddl
