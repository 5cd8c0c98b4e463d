#include "tls/session.h"

#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace ddl {

namespace {

// Of OpenSSL's headers.
constexpr int kTls13 = 0x0304, kWantRead = 2, kSystemCall = 5, kZeroReturn = 6;
constexpr int kSetMode = 33, kSetReadAhead = 41, kSetLeastVersion = 123, kSetMostVersion = 124;
constexpr long kPartialWrite = 1;
constexpr long kReleaseBuffers = 0x10;  // while there is nothing in them: a job's store has a thousand connections
constexpr int kBioType = 0x0400, kRetryRead = 0x01 | 0x08, kBioFlush = 11;
constexpr int kKeyUpdateNotRequested = 0, kVerifyPeer = 1;

// One suite: the key is bound to a hash, and a server that preferred another one would not use it.
constexpr const char* kSuite = "TLS_AES_128_GCM_SHA256";
constexpr unsigned char kSuiteNumber[] = {0x13, 0x01};
constexpr unsigned char kIdentity[] = {'d', 'd', 'l', '-', '1'};
constexpr size_t kReadBuffer = 128 << 10;  // bytes that one call of the kernel may bring

}  // namespace

struct TlsSession::Wire {
  static TlsSession* of(const Ssl* ssl) { return static_cast<TlsSession*>(OpenSsl::get().SSL_get_ex_data(ssl, 0)); }
  static TlsSession* of(Bio* bio) { return static_cast<TlsSession*>(OpenSsl::get().BIO_get_data(bio)); }

  // --- the key ---
  static SslSession* known(Ssl* ssl) {
    const OpenSsl& open = OpenSsl::get();
    const Key& key = of(ssl)->key_;
    SslSession* const session = open.SSL_SESSION_new();
    const SslCipher* const cipher = open.SSL_CIPHER_find(ssl, kSuiteNumber);
    if (session != nullptr && cipher != nullptr &&
        open.SSL_SESSION_set1_master_key(session, key.data(), key.size()) == 1 &&
        open.SSL_SESSION_set_cipher(session, cipher) == 1 &&
        open.SSL_SESSION_set_protocol_version(session, kTls13) == 1) {
      return session;
    }
    open.SSL_SESSION_free(session);
    return nullptr;
  }
  static int use_psk(Ssl* ssl, const Digest*, const unsigned char** identity, size_t* length, SslSession** session) {
    *identity = kIdentity;
    *length = sizeof kIdentity;
    *session = known(ssl);
    return *session != nullptr ? 1 : 0;
  }
  static int find_psk(Ssl* ssl, const unsigned char* identity, size_t length, SslSession** session) {
    const bool ours = length == sizeof kIdentity && std::memcmp(identity, kIdentity, length) == 0;
    *session = ours ? known(ssl) : nullptr;
    return ours && *session == nullptr ? 0 : 1;
  }

  // --- the socket ---
  // Several records go with one call of the kernel.
  static int keep(Bio* bio, const char* from, int bytes) {
    std::vector<char>& out = of(bio)->out_;
    out.insert(out.end(), from, from + bytes);
    return bytes;
  }
  static int receive(Bio* bio, char* to, int bytes) {
    TlsSession* const self = of(bio);
    OpenSsl::get().BIO_clear_flags(bio, kRetryRead);
    const ssize_t moved = ::recv(self->fd_, to, static_cast<size_t>(bytes), MSG_DONTWAIT);
    self->wire_error_ = moved < 0 ? errno : 0;
    if (moved == 0) self->wire_closed_ = true;
    if (moved < 0 && would_block()) OpenSsl::get().BIO_set_flags(bio, kRetryRead);
    return static_cast<int>(moved);
  }
  static long control(Bio*, int command, long, void*) { return command == kBioFlush ? 1 : 0; }

  // --- what all connections share; never freed ---
  static SslContext* make_context(bool read_ahead) {
    const OpenSsl& open = OpenSsl::get();
    SslContext* const context = open.SSL_CTX_new(open.TLS_method());
    if (context == nullptr) throw Error(ErrorKind::kResourceError, "encryption: OpenSSL could not be set up");
    open.SSL_CTX_ctrl(context, kSetLeastVersion, kTls13, nullptr);
    open.SSL_CTX_ctrl(context, kSetMostVersion, kTls13, nullptr);
    open.SSL_CTX_ctrl(context, kSetMode, kPartialWrite | (read_ahead ? 0 : kReleaseBuffers), nullptr);
    if (read_ahead) {
      open.SSL_CTX_ctrl(context, kSetReadAhead, 1, nullptr);
      open.SSL_CTX_set_default_read_buffer_len(context, kReadBuffer);
    }
    open.SSL_CTX_set_num_tickets(context, 0);
    if (open.SSL_CTX_set_ciphersuites(context, kSuite) != 1) {
      throw Error(ErrorKind::kResourceError, std::string("encryption: this OpenSSL does not have ") + kSuite);
    }
    open.SSL_CTX_set_psk_use_session_callback(context, use_psk);
    open.SSL_CTX_set_psk_find_session_callback(context, find_psk);
    return context;
  }
  static BioMethod* make_method() {
    const OpenSsl& open = OpenSsl::get();
    BioMethod* const method = open.BIO_meth_new(kBioType, "DDL's data connection");
    if (method == nullptr) throw Error(ErrorKind::kResourceError, "encryption: OpenSSL could not be set up");
    open.BIO_meth_set_write(method, keep);
    open.BIO_meth_set_read(method, receive);
    open.BIO_meth_set_ctrl(method, control);
    return method;
  }
};

TlsSession::TlsSession(int fd, bool server, const Key& key, bool read_ahead, uint64_t key_lasts)
    : RecordSession(fd), key_(key), key_lasts_(key_lasts) {
  const OpenSsl& open = OpenSsl::get();
  static std::array<SslContext*, 2> const contexts = {Wire::make_context(false), Wire::make_context(true)};
  static BioMethod* const method = Wire::make_method();
  ssl_ = open.SSL_new(contexts[read_ahead ? 1 : 0]);
  Bio* const bio = ssl_ != nullptr ? open.BIO_new(method) : nullptr;
  if (bio == nullptr) {
    open.SSL_free(ssl_);
    throw Error(ErrorKind::kResourceError, "encryption: OpenSSL could not make a connection: is there memory left?");
  }
  open.BIO_set_data(bio, this);
  open.BIO_set_init(bio, 1);
  open.SSL_set_bio(ssl_, bio, bio);
  open.SSL_set_ex_data(ssl_, 0, this);
  // Who does not know the key may still offer a certificate. No authority is known here, so none is ever trusted.
  if (!server) open.SSL_set_verify(ssl_, kVerifyPeer, nullptr);
  server ? open.SSL_set_accept_state(ssl_) : open.SSL_set_connect_state(ssl_);
}

TlsSession::~TlsSession() { OpenSsl::get().SSL_free(ssl_); }

// What a call of OpenSSL means that has not moved anything.
TlsSession::Moved TlsSession::outcome(int returned) {
  const OpenSsl& open = OpenSsl::get();
  const int error = open.SSL_get_error(ssl_, returned);
  if (error == kWantRead) return Moved::kNone;
  const char* const text = open.ERR_reason_error_string(open.ERR_get_error());
  open.ERR_clear_error();
  if (wire_closed_ || error == kZeroReturn) return end_by_closing();
  if (error == kSystemCall && wire_error_ != 0) return end_by(wire_error_);
  const bool first = reason().empty();
  end(std::string("the encrypted connection is broken, or somebody on the way has changed it (OpenSSL: ") +
      (text != nullptr ? text : "no reason") + ")");
  if (first) send();  // the other end is told why
  return Moved::kEnded;
}

bool TlsSession::shake_hands() {
  const OpenSsl& open = OpenSsl::get();
  open.ERR_clear_error();
  const int returned = open.SSL_do_handshake(ssl_);
  if ((returned != 1 && outcome(returned) == Moved::kEnded) || send() == Moved::kEnded) {
    throw Error(ErrorKind::kProtocolError, reason());
  }
  if (returned == 1 && open.SSL_session_reused(ssl_) != 1) {
    throw Error(ErrorKind::kProtocolError, "the other end does not know the key of this connection");
  }
  return returned == 1 && sealed() == 0;
}

TlsSession::Moved TlsSession::seal(const void* from, size_t bytes, size_t* done) {
  const OpenSsl& open = OpenSsl::get();
  *done = 0;
  open.ERR_clear_error();
  if (written_ >= key_lasts_ && open.SSL_key_update(ssl_, kKeyUpdateNotRequested) == 1) written_ = 0;
  const int returned = open.SSL_write_ex(ssl_, from, bytes, done);
  written_ += *done;
  return returned == 1 ? Moved::kSome : outcome(returned);
}

TlsSession::Moved TlsSession::read(void* to, size_t bytes, size_t* done) {
  const OpenSsl& open = OpenSsl::get();
  *done = 0;
  open.ERR_clear_error();
  const int returned = open.SSL_read_ex(ssl_, to, bytes, done);
  drained_ = returned != 1;
  return returned == 1 ? Moved::kSome : outcome(returned);
}

bool TlsSession::holds_input() const { return !drained_ && OpenSsl::get().SSL_has_pending(ssl_) == 1; }

}  // namespace ddl
