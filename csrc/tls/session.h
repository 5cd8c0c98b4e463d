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

namespace ddl {

class TlsSession {
 public:
  static constexpr size_t kKeyBytes = 32;
  static constexpr size_t kRecordBytes = 16 << 10;  // of data; longer writes are cut
  // AES-GCM is safe for 2^24.5 full records with one key (RFC 8446, 5.5): 390 GB.
  static constexpr uint64_t kKeyLasts = uint64_t{64} << 30;
  using Key = std::array<unsigned char, kKeyBytes>;

  enum class Moved {
    kSome,
    kNone,   // it would have to wait
    kEnded,  // nothing more will ever: see `reason`
  };

  // On `fd`, a connected socket that outlives this. `server`: this end has accepted it. `read_ahead`: take all that
  // has come from the kernel at once, for much data; without it `fd` is readable until all was read, but for what is
  // left of one record. `key_lasts`: bytes written, after which there is a new key.
  TlsSession(int fd, bool server, const Key& key, bool read_ahead, uint64_t key_lasts = kKeyLasts);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Agrees with the other end, before anything else: does what can be done without waiting, and returns whether that
  // was all. Throws kProtocolError if it fails.
  bool shake_hands();
  // Encrypts so many bytes, but a record at most, and keeps it until `send` has sent it. kNone never comes.
  Moved seal(const void* from, size_t bytes, size_t* done);
  // Bytes that wait to be sent.
  size_t sealed() const { return out_.size() - sent_; }
  // Sends what was sealed. kSome: all of it has gone.
  Moved send();
  Moved read(void* to, size_t bytes, size_t* done);
  // Whether bytes have come that `read` has not given, and of which the socket knows nothing any more.
  bool holds_input() const;
  const std::string& reason() const { return reason_; }
  // Whether it has ended as connections of processes do that end.
  bool closed() const { return closed_; }
  // The errno by which the kernel has ended it; 0: it has not.
  int error() const { return error_; }

 private:
  struct Wire;  // what OpenSSL calls
  Moved outcome(int returned);
  Moved end(const std::string& reason);
  Moved end_by(int error);

  const int fd_;
  const Key key_;
  const uint64_t key_lasts_;
  uint64_t written_ = 0;   // with the key of now
  bool drained_ = true;    // all that has come was given, but for a part of a record
  std::vector<char> out_;  // records, of which so many bytes were sent
  size_t sent_ = 0;
  int wire_error_ = 0;  // errno of the last look at the socket
  bool wire_closed_ = false;
  bool closed_ = false;
  int error_ = 0;
  Ssl* ssl_ = nullptr;
  std::string reason_;
};

}  // namespace ddl
