#include "rendezvous/auth/tls_context.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <utility>

#include "base/concat.h"
#include "base/openssl_loader.h"
#include "base/unique_fd.h"

namespace ddprun {
namespace {

// Returns the status of a file, or the system's error. OpenSSL would report only that something
// failed.
Result<struct stat> look_at(const std::string& doing, const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0) return system_error(doing, errno);
  if (S_ISDIR(status.st_mode)) return system_error(doing, EISDIR);
  return status;
}

// Refuses passphrases. Without it OpenSSL would ask on the terminal.
int no_passphrase(char*, int, int, void*) { return 0; }

// Fails if OpenSSL is missing, or if its configuration on this system is wrong.
Result<ssl_ctx_st*> make_context() {
  if (Result<void> there = load_openssl(); !there) return std::move(there).error();
  openssl().ERR_clear_error();
  ssl_ctx_st* context = openssl().SSL_CTX_new(openssl().TLS_method());
  if (!context) {
    return Error{.doing = "prepare OpenSSL for TLS",
                 .cause = take_openssl_reason("unknown reason")};
  }
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_MIN_PROTO_VERSION, TLS1_2_VERSION, nullptr);
  // TLS 1.3 always has forward secrecy. In TLS 1.2, some ciphers send the secret under the
  // certificate's key. An attacker that gets this key later could then decrypt recorded traffic.
  openssl().SSL_CTX_set_cipher_list(context, "DEFAULT:!kRSA:!kPSK:!kRSAPSK:!kSRP");
  // Every connection does a full handshake. Session tickets would save little and need a secret
  // that outlives the connection.
  openssl().SSL_CTX_set_options(context,
                                SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_TICKET | SSL_OP_NO_COMPRESSION);
  openssl().SSL_CTX_set_num_tickets(context, 0);
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_SET_SESS_CACHE_MODE, SSL_SESS_CACHE_OFF, nullptr);
  // Most connections are idle most of the time.
  openssl().SSL_CTX_ctrl(context, SSL_CTRL_MODE, SSL_MODE_RELEASE_BUFFERS, nullptr);
  openssl().SSL_CTX_set_default_passwd_cb(context, &no_passphrase);
  // Trusts every certificate in --rdzv-tls-ca, also one that another authority has signed.
  openssl().X509_VERIFY_PARAM_set_flags(openssl().SSL_CTX_get0_param(context),
                                        X509_V_FLAG_PARTIAL_CHAIN);
  return context;
}

// Returns " (OpenSSL: no start line)". OpenSSL's reason matters: for example, a certificate may
// be valid PEM, but too weak.
std::string openssl_says() { return " (OpenSSL: " + take_openssl_reason("no reason") + ")"; }

Result<void> use_certificate(ssl_ctx_st* context, const TlsFiles& files) {
  const std::string& path = files.cert;
  const std::string doing = concat(files.options, "cert: read the certificate in ", path);
  if (const auto file = look_at(doing, path); !file) return file.error();
  if (openssl().SSL_CTX_use_certificate_chain_file(context, path.c_str()) == 1) return {};
  return invalid_argument("no certificate in PEM found" + openssl_says()).within(doing);
}

// REQUIRES: the certificate is set. Returns a warning about the file, or an empty text.
Result<std::string> use_key(ssl_ctx_st* context, const TlsFiles& files) {
  const std::string doing = concat(files.options, "key: read the key in ", files.key);
  const auto file = look_at(doing, files.key);
  if (!file) return file.error();
  const bool read =
      openssl().SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1;
  const int reason = ERR_GET_REASON(openssl().ERR_peek_last_error());
  if (!read && reason != X509_R_KEY_VALUES_MISMATCH) {
    return invalid_argument("no key in PEM without a passphrase found" + openssl_says())
        .within(doing);
  }
  if (!read || openssl().SSL_CTX_check_private_key(context) != 1) {
    openssl().ERR_clear_error();
    return invalid_argument("not the key of the certificate in " + files.cert).within(doing);
  }
  if ((file->st_mode & (S_IRGRP | S_IROTH)) == 0) return std::string();
  return "other users can read the key in " + files.key + ": chmod 600 " + files.key;
}

Result<void> use_authorities(ssl_ctx_st* context, const TlsFiles& files) {
  const std::string& path = files.ca;
  const std::string doing = concat(files.options, "ca: read the authorities in ", path);
  if (const auto file = look_at(doing, path); !file) return file.error();
  if (openssl().SSL_CTX_load_verify_locations(context, path.c_str(), nullptr) == 1) return {};
  return invalid_argument("no certificates in PEM found" + openssl_says()).within(doing);
}

}  // namespace

std::string take_openssl_reason(const std::string& otherwise) {
  const unsigned long first = openssl().ERR_get_error();
  openssl().ERR_clear_error();
  const char* reason = first == 0 ? nullptr : openssl().ERR_reason_error_string(first);
  return reason ? reason : otherwise;
}

TlsContext::~TlsContext() { openssl().SSL_CTX_free(context_); }

Result<FoundTls> TlsContext::for_service(const TlsFiles& files) {
  if (files.cert.empty()) {
    return invalid_argument(
               "a TLS service needs a certificate and its key (--rdzv-tls-cert and --rdzv-tls-key)")
        .within("--rdzv-tls-cert");
  }
  if (files.ca == TlsFiles::kSystem) {
    return invalid_argument(
               "'system' would admit every node that has any certificate: give a file with the "
               "authority of the nodes")
        .within("--rdzv-tls-ca");
  }
  return make(files, Side::kService);
}

Result<FoundTls> TlsContext::for_agent(const TlsFiles& files) { return make(files, Side::kAgent); }

Result<FoundTls> TlsContext::make(const TlsFiles& files, Side side) {
  const Result<ssl_ctx_st*> made = make_context();
  if (!made) return made.error();
  const std::shared_ptr<TlsContext> context(new TlsContext(*made));
  FoundTls found{.context = context, .remark = {}};
  if (files.cert.empty() != files.key.empty()) {
    const bool lacks_key = files.key.empty();
    return invalid_argument(
               concat("needs ", files.options, lacks_key ? "key" : "cert", ", which was not given"))
        .within(concat(files.options, lacks_key ? "cert" : "key"));
  }
  openssl().ERR_clear_error();
  if (!files.cert.empty()) {
    if (const auto used = use_certificate(*made, files); !used) return used.error();
    Result<std::string> remark = use_key(*made, files);
    if (!remark) return std::move(remark).error();
    found.remark = std::move(*remark);
  }
  if (files.has_authority()) {
    if (const auto used = use_authorities(*made, files); !used) return used.error();
  }
  if (side == Side::kAgent) {
    openssl().SSL_CTX_set_verify(*made, SSL_VERIFY_PEER, nullptr);
    if (!files.has_authority()) openssl().SSL_CTX_set_default_verify_paths(*made);
  } else if (!files.ca.empty()) {
    openssl().SSL_CTX_set_verify(*made, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
    openssl().SSL_CTX_set_client_CA_list(*made,
                                         openssl().SSL_load_client_CA_file(files.ca.c_str()));
    context->demands_certificates_ = true;
  }
  openssl().ERR_clear_error();
  return found;
}

}  // namespace ddprun
