// One end of an encrypted connection: TLS 1.3 with a key that both ends know beforehand, so without certificates.
//
// The key is only a proof: what encrypts is agreed upon anew for each connection (psk_dhe_ke), so who learns a job's
// secret later can read nothing old. Bytes that were changed, dropped, repeated or swapped on their way end it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tls/openssl.h"
#include "wire/record_session.h"

namespace ddl {

class TlsSession final : public RecordSession {
 public:
  static constexpr size_t kKeyBytes = 32;
  // AES-GCM is safe for 2^24.5 full records with one key (RFC 8446, 5.5): 390 GB.
  static constexpr uint64_t kKeyLasts = uint64_t{64} << 30;
  using Key = std::array<unsigned char, kKeyBytes>;

  // On `fd`, a connected socket that outlives this. `server`: this end has accepted it. `read_ahead`: take all that
  // has come from the kernel at once, for much data; without it `fd` is readable until all was read, but for what is
  // left of one record. `key_lasts`: bytes written, after which there is a new key.
  TlsSession(int fd, bool server, const Key& key, bool read_ahead, uint64_t key_lasts = kKeyLasts);
  ~TlsSession() override;

  // Agrees with the other end, before anything else: does what can be done without waiting, and returns whether that
  // was all. Throws kProtocolError if it fails.
  bool shake_hands();
  Moved seal(const void* from, size_t bytes, size_t* done) override;
  Moved read(void* to, size_t bytes, size_t* done) override;
  bool holds_input() const override;

 private:
  struct Wire;  // what OpenSSL calls
  Moved outcome(int returned);

  const Key key_;
  const uint64_t key_lasts_;
  uint64_t written_ = 0;  // with the key of now
  bool drained_ = true;   // all that has come was given, but for a part of a record
  int wire_error_ = 0;    // errno of the last look at the socket
  bool wire_closed_ = false;
  Ssl* ssl_ = nullptr;
};

}  // namespace ddl
