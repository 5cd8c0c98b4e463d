// Carries bytes between an encrypted connection and a plain socket of this process, for code that knows only sockets.
#pragma once

#include <string>

namespace ddl {

class TlsSession;

// Carries both ways until one of the two ends, and what was written to `plain` before that. Blocking. `session`: on
// `encrypted`. Neither socket is closed. Returns why the encrypted connection has ended; empty: `plain` was closed.
std::string relay(TlsSession* session, int encrypted, int plain);

}  // namespace ddl
