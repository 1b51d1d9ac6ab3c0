// Loads OpenSSL when it is first needed.
//
// Loading libcrypto costs each process 1.7 ms at start and 0.1 MB of written memory, and most
// jobs have neither keys nor certificates. So OpenSSL's functions are members of a table that
// dlopen(3) fills: openssl().SSL_new(...). Macros of the headers that call functions
// (SSL_CTX_set_mode) must be replaced by the function that they call (SSL_CTX_ctrl). Any
// thread.
#pragma once

#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include "base/result.h"

// The functions that ddprun uses.
#define DDPRUN_LIBCRYPTO_FUNCTIONS(X) \
  X(BIO_ctrl)                         \
  X(BIO_new)                          \
  X(BIO_s_mem)                        \
  X(BIO_write)                        \
  X(CRYPTO_memcmp)                    \
  X(ERR_clear_error)                  \
  X(ERR_get_error)                    \
  X(ERR_peek_error)                   \
  X(ERR_peek_last_error)              \
  X(ERR_reason_error_string)          \
  X(EVP_Digest)                       \
  X(EVP_sha256)                       \
  X(HMAC)                             \
  X(X509_VERIFY_PARAM_set1_ip_asc)    \
  X(X509_VERIFY_PARAM_set_flags)      \
  X(X509_verify_cert_error_string)

#define DDPRUN_LIBSSL_FUNCTIONS(X)      \
  X(SSL_CTX_check_private_key)          \
  X(SSL_CTX_ctrl)                       \
  X(SSL_CTX_free)                       \
  X(SSL_CTX_get0_param)                 \
  X(SSL_CTX_load_verify_locations)      \
  X(SSL_CTX_new)                        \
  X(SSL_CTX_set_cipher_list)            \
  X(SSL_CTX_set_client_CA_list)         \
  X(SSL_CTX_set_default_passwd_cb)      \
  X(SSL_CTX_set_default_verify_paths)   \
  X(SSL_CTX_set_num_tickets)            \
  X(SSL_CTX_set_options)                \
  X(SSL_CTX_set_verify)                 \
  X(SSL_CTX_use_PrivateKey_file)        \
  X(SSL_CTX_use_certificate_chain_file) \
  X(SSL_ctrl)                           \
  X(SSL_do_handshake)                   \
  X(SSL_export_keying_material)         \
  X(SSL_free)                           \
  X(SSL_get0_param)                     \
  X(SSL_get_error)                      \
  X(SSL_get_rbio)                       \
  X(SSL_get_verify_result)              \
  X(SSL_get_wbio)                       \
  X(SSL_load_client_CA_file)            \
  X(SSL_new)                            \
  X(SSL_read)                           \
  X(SSL_set1_host)                      \
  X(SSL_set_accept_state)               \
  X(SSL_set_bio)                        \
  X(SSL_set_connect_state)              \
  X(SSL_set_hostflags)                  \
  X(SSL_shutdown)                       \
  X(SSL_version)                        \
  X(SSL_write_ex)                       \
  X(TLS_method)

namespace ddprun {

struct OpenSsl {
#define DDPRUN_MEMBER(name) decltype(&::name) name = nullptr;
  DDPRUN_LIBCRYPTO_FUNCTIONS(DDPRUN_MEMBER)
  DDPRUN_LIBSSL_FUNCTIONS(DDPRUN_MEMBER)
#undef DDPRUN_MEMBER
};

// Loads OpenSSL, once. Code that gets a key or a certificate calls this while an error can
// still be reported. kUnsupported names the library that is missing.
Result<void> load_openssl();

// Returns the table. Loads OpenSSL if that has not been done. REQUIRES: it can be loaded.
const OpenSsl& openssl();

}  // namespace ddprun
