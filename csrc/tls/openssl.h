// The functions of OpenSSL that an encrypted connection needs, from the library that Python itself uses: loaded when
// a job first encrypts, never before. No header of OpenSSL is needed to build. OpenSSL 1.1.1 and 3 have all of these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddl {

// OpenSSL's own types: only it looks into them.
struct Ssl;
struct SslContext;
struct SslMethod;
struct SslSession;
struct SslCipher;
struct Bio;
struct BioMethod;
struct Digest;

using UsePsk = int (*)(Ssl*, const Digest*, const unsigned char** identity, size_t* length, SslSession**);
using Verify = int (*)(int, void*);
using FindPsk = int (*)(Ssl*, const unsigned char* identity, size_t length, SslSession**);

// For each: what it returns, its name there, and its parameters.
#define DDL_OPENSSL_FUNCTIONS(F)                                                   \
  F(const SslMethod*, TLS_method, ())                                              \
  F(SslContext*, SSL_CTX_new, (const SslMethod*))                                  \
  F(long, SSL_CTX_ctrl, (SslContext*, int, long, void*))                           \
  F(int, SSL_CTX_set_ciphersuites, (SslContext*, const char*))                     \
  F(int, SSL_CTX_set_num_tickets, (SslContext*, size_t))                           \
  F(void, SSL_CTX_set_default_read_buffer_len, (SslContext*, size_t))              \
  F(void, SSL_set_verify, (Ssl*, int, Verify))                                     \
  F(void, SSL_CTX_set_psk_use_session_callback, (SslContext*, UsePsk))             \
  F(void, SSL_CTX_set_psk_find_session_callback, (SslContext*, FindPsk))           \
  F(Ssl*, SSL_new, (SslContext*))                                                  \
  F(void, SSL_free, (Ssl*))                                                        \
  F(void, SSL_set_bio, (Ssl*, Bio*, Bio*))                                         \
  F(int, SSL_set_ex_data, (Ssl*, int, void*))                                      \
  F(void*, SSL_get_ex_data, (const Ssl*, int))                                     \
  F(void, SSL_set_connect_state, (Ssl*))                                           \
  F(void, SSL_set_accept_state, (Ssl*))                                            \
  F(int, SSL_do_handshake, (Ssl*))                                                 \
  F(int, SSL_session_reused, (const Ssl*))                                         \
  F(int, SSL_read_ex, (Ssl*, void*, size_t, size_t*))                              \
  F(int, SSL_write_ex, (Ssl*, const void*, size_t, size_t*))                       \
  F(int, SSL_get_error, (const Ssl*, int))                                         \
  F(int, SSL_has_pending, (const Ssl*))                                            \
  F(int, SSL_key_update, (Ssl*, int))                                              \
  F(const SslCipher*, SSL_CIPHER_find, (Ssl*, const unsigned char*))               \
  F(SslSession*, SSL_SESSION_new, ())                                              \
  F(void, SSL_SESSION_free, (SslSession*))                                         \
  F(int, SSL_SESSION_set1_master_key, (SslSession*, const unsigned char*, size_t)) \
  F(int, SSL_SESSION_set_cipher, (SslSession*, const SslCipher*))                  \
  F(int, SSL_SESSION_set_protocol_version, (SslSession*, int))                     \
  F(BioMethod*, BIO_meth_new, (int, const char*))                                  \
  F(int, BIO_meth_set_write, (BioMethod*, int (*)(Bio*, const char*, int)))        \
  F(int, BIO_meth_set_read, (BioMethod*, int (*)(Bio*, char*, int)))               \
  F(int, BIO_meth_set_ctrl, (BioMethod*, long (*)(Bio*, int, long, void*)))        \
  F(Bio*, BIO_new, (const BioMethod*))                                             \
  F(void, BIO_set_data, (Bio*, void*))                                             \
  F(void*, BIO_get_data, (Bio*))                                                   \
  F(void, BIO_set_init, (Bio*, int))                                               \
  F(void, BIO_set_flags, (Bio*, int))                                              \
  F(void, BIO_clear_flags, (Bio*, int))                                            \
  F(unsigned long, ERR_get_error, ())                                              \
  F(void, ERR_clear_error, ())                                                     \
  F(const char*, ERR_reason_error_string, (unsigned long))

struct OpenSsl {
#define DDL_DECLARE(returned, name, parameters) returned(*name) parameters;
  DDL_OPENSSL_FUNCTIONS(DDL_DECLARE)
#undef DDL_DECLARE

  // Loads the library: the file `path`, or, if that is empty, the one that fits. Once; a later call does nothing.
  // Throws kResourceError if there is none.
  static void load(const std::string& path);
  // The functions of the library, which was loaded.
  static const OpenSsl& get();
};

}  // namespace ddl
