#include "rendezvous/auth/tls_channel.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <climits>

#include "base/assert.h"
#include "base/openssl_loader.h"

namespace ddprun {
namespace {

bool is_numeric(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

// Returns advice for an alert. The peer's alert is about our side.
std::string advice_on(int alert) {
  switch (alert) {
    case SSL_AD_PROTOCOL_VERSION: return " (perhaps the service has no --rdzv-tls-cert)";
    case SSL_AD_CERTIFICATE_REQUIRED:
    case SSL_AD_HANDSHAKE_FAILURE:
      return " (if it requires a certificate, give --rdzv-tls-cert and --rdzv-tls-key)";
    case SSL_AD_UNKNOWN_CA: return " (our certificate does not come from its --rdzv-tls-ca)";
    default: return "";
  }
}

}  // namespace

void TlsChannel::Free::operator()(ssl_st* ssl) const { openssl().SSL_free(ssl); }

TlsChannel::TlsChannel(TlsContextPtr context)
    : context_(std::move(context)), ssl_(openssl().SSL_new(context_->get())) {
  BIO* from_wire = openssl().BIO_new(openssl().BIO_s_mem());
  BIO* to_wire = openssl().BIO_new(openssl().BIO_s_mem());
  DDPRUN_ASSERT(ssl_ && from_wire && to_wire, "OpenSSL has memory");
  openssl().SSL_set_bio(ssl_.get(), from_wire, to_wire);
}

TlsChannel TlsChannel::service(TlsContextPtr context) {
  TlsChannel channel(std::move(context));
  openssl().SSL_set_accept_state(channel.ssl_.get());
  return channel;
}

TlsChannel TlsChannel::agent(TlsContextPtr context, const std::string& host) {
  TlsChannel channel(std::move(context));
  ssl_st* ssl = channel.ssl_.get();
  openssl().SSL_set_connect_state(ssl);
  channel.host_ = host;
  if (is_numeric(host)) {
    DDPRUN_ASSERT(
        openssl().X509_VERIFY_PARAM_set1_ip_asc(openssl().SSL_get0_param(ssl), host.c_str()) == 1,
        "the address is valid");
  } else {
    std::string name = host;
    if (name.size() > 1 && name.ends_with('.')) name.pop_back();
    openssl().SSL_set_hostflags(
        ssl, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
    DDPRUN_ASSERT(!name.empty() && openssl().SSL_set1_host(ssl, name.c_str()) == 1,
                  "without a name every certificate would do");
    openssl().SSL_ctrl(ssl, SSL_CTRL_SET_TLSEXT_HOSTNAME, TLSEXT_NAMETYPE_host_name,
                       const_cast<char*>(name.c_str()));
  }
  if (const Result<void> begun = channel.shake_hands(); !begun) channel.cannot_ = begun.error();
  return channel;
}

Result<void> TlsChannel::receive(std::string_view wire) {
  if (cannot_) return *cannot_;
  if (!is_open_ && (handshake_bytes_ += wire.size()) > kMaxHandshakeBytes) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "TLS handshake",
                 .cause = "more than " + std::to_string(kMaxHandshakeBytes) + " bytes"};
  }
  if (!is_open_ && first_bytes_.size() < kTryLater.size()) {
    first_bytes_ += wire.substr(0, kTryLater.size() - first_bytes_.size());
  }
  DDPRUN_ASSERT(wire.size() < INT_MAX, "what is read at a time is short");
  const int size = static_cast<int>(wire.size());
  DDPRUN_ASSERT(size == 0 || openssl().BIO_write(openssl().SSL_get_rbio(ssl_.get()), wire.data(),
                                                 size) == size,
                "OpenSSL has memory");
  if (!is_open_) {
    if (const Result<void> shaken = shake_hands(); !shaken || !is_open_) return shaken;
  }
  return read_plain();
}

Result<void> TlsChannel::shake_hands() {
  openssl().ERR_clear_error();
  const int done = openssl().SSL_do_handshake(ssl_.get());
  if (done != 1) {
    const int code = openssl().SSL_get_error(ssl_.get(), done);
    if (code == SSL_ERROR_WANT_READ) return {};
    return failure(code);
  }
  // Without it, binding() would not be unique to this connection (RFC 7627).
  if (openssl().SSL_version(ssl_.get()) < TLS1_3_VERSION &&
      openssl().SSL_ctrl(ssl_.get(), SSL_CTRL_GET_EXTMS_SUPPORT, 0, nullptr) != 1) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "TLS handshake",
                 .cause = "TLS 1.2 without the extended master secret"};
  }
  is_open_ = true;
  return {};
}

Result<void> TlsChannel::read_plain() {
  std::array<char, 16 * 1024> some;
  while (true) {
    openssl().ERR_clear_error();
    const int got = openssl().SSL_read(ssl_.get(), some.data(), some.size());
    if (got > 0) {
      plain_.append(some.data(), static_cast<std::size_t>(got));
      continue;
    }
    const int code = openssl().SSL_get_error(ssl_.get(), got);
    if (code == SSL_ERROR_WANT_READ) return {};
    if (code == SSL_ERROR_ZERO_RETURN) {
      is_ended_ = true;
      return {};
    }
    return failure(code);
  }
}

// Returns one line with OpenSSL's reason. For a rejected certificate, it also says what is wrong
// with it.
Error TlsChannel::failure(int code) {
  const unsigned long first = openssl().ERR_peek_error();
  const int reason = ERR_GET_REASON(first);
  std::string cause = take_openssl_reason(
      code == SSL_ERROR_ZERO_RETURN ? "the peer ended the connection" : "unknown reason");
  if (reason == SSL_R_CERTIFICATE_VERIFY_FAILED) {
    const long result = openssl().SSL_get_verify_result(ssl_.get());
    cause = std::string("the certificate of the peer is not accepted: ") +
            openssl().X509_verify_cert_error_string(result);
    const bool is_anothers =
        result == X509_V_ERR_HOSTNAME_MISMATCH || result == X509_V_ERR_IP_ADDRESS_MISMATCH;
    if (is_anothers) cause += " (it is not valid for '" + host_ + "')";
    const bool is_strange = result == X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN ||
                            result == X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT ||
                            result == X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY;
    if (is_strange) cause += " (--rdzv-tls-ca names the accepted authorities)";
  } else if (reason == SSL_R_PEER_DID_NOT_RETURN_A_CERTIFICATE) {
    cause = "the peer sent no certificate";
  } else if (reason > SSL_AD_REASON_OFFSET) {
    cause = "the peer sent: " + cause + advice_on(reason - SSL_AD_REASON_OFFSET);
  }
  const bool is_agents = !host_.empty();
  const bool is_put_off = is_agents && !is_open_ && first_bytes_ == kTryLater;
  if (is_put_off) cause += " (the service has too many handshakes: try later)";
  return Error{.kind = is_put_off ? ErrorKind::kResource : ErrorKind::kProtocol,
               .doing = is_open_ ? "TLS" : "TLS handshake",
               .cause = std::move(cause)};
}

void TlsChannel::send(std::string_view plain) {
  DDPRUN_ASSERT(is_open_, "the handshake is over before anything is said");
  if (plain.empty()) return;
  std::size_t sent = 0;
  openssl().ERR_clear_error();
  const int done = openssl().SSL_write_ex(ssl_.get(), plain.data(), plain.size(), &sent);
  // A broken or closed channel drops the bytes; its owner gets the error from receive().
  DDPRUN_ASSERT(done != 1 || sent == plain.size(), "what goes to memory goes there whole");
}

void TlsChannel::close() {
  if (!is_open_) return;
  openssl().ERR_clear_error();
  openssl().SSL_shutdown(ssl_.get());
}

std::string TlsChannel::take_wire() {
  BIO* to_wire = openssl().SSL_get_wbio(ssl_.get());
  char* bytes = nullptr;
  const long size = openssl().BIO_ctrl(to_wire, BIO_CTRL_INFO, 0, &bytes);
  std::string taken(bytes, static_cast<std::size_t>(std::max(0L, size)));
  openssl().BIO_ctrl(to_wire, BIO_CTRL_RESET, 0, nullptr);
  return taken;
}

std::string TlsChannel::binding() const {
  DDPRUN_ASSERT(is_open_, "the handshake is over before it is relied on");
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  std::string bytes(32, '\0');
  const unsigned char none = 0;  // the context is present and empty
  const int done = openssl().SSL_export_keying_material(
      ssl_.get(), reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), kLabel.data(),
      kLabel.size(), &none, 0, 1);
  DDPRUN_ASSERT(done == 1, "OpenSSL exports keying material");
  return bytes;
}

}  // namespace ddprun
