// TlsContext: certificate, key and certificate authority (CA) for TLS on the control port, read
// from files.
//
// It is immutable, so connections share it. To read the files again, make a new one, which later
// connections use. Making one reads files and may block. Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

// OpenSSL's SSL_CTX and SSL. Only tls_context.cc and tls_channel.cc include
// base/openssl_loader.h, which includes OpenSSL's headers.
struct ssl_ctx_st;
struct ssl_st;

namespace ddprun {

// Values of --rdzv-tls-cert, --rdzv-tls-key and --rdzv-tls-ca: files in PEM.
struct TlsFiles {
  // Value of `ca` that stands for the authorities that this system trusts.
  static constexpr const char* kSystem = "system";

  std::string cert;  // the certificate and its intermediate certificates
  std::string key;   // its private key, without a passphrase
  std::string ca;    // the authorities that must have issued the peer's certificate

  const char* options = "--rdzv-tls-";  // what the names of the options begin with, for errors

  bool is_given() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  // Returns true if `ca` names a file.
  bool has_authority() const { return !ca.empty() && ca != kSystem; }
};

class TlsContext;
using TlsContextPtr = std::shared_ptr<const TlsContext>;

struct FoundTls {
  TlsContextPtr context;
  std::string remark;  // warning for the log; empty: there is none
};

class TlsContext {
 public:
  // Makes the context of the side that accepts. It needs cert and key. With ca it demands a
  // certificate from that authority of every client. Errors are kInvalidArgument or the system's
  // error about a file, on one line with the option and the file.
  static Result<FoundTls> for_service(const TlsFiles& files);
  // Makes the context of the side that connects. The service's certificate must come from ca or,
  // without ca, from an authority that this system trusts. cert and key are optional, but only
  // together. They are shown to a service that demands a certificate.
  static Result<FoundTls> for_agent(const TlsFiles& files);

  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Returns true if every client must have a certificate. The TLS handshake fails without one.
  bool demands_certificates() const { return demands_certificates_; }

  // Returns the context of OpenSSL, for TlsChannel.
  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  enum class Side { kService, kAgent };
  static Result<FoundTls> make(const TlsFiles& files, Side side);

  ssl_ctx_st* context_;
  bool demands_certificates_ = false;
};

// Returns OpenSSL's reason for the oldest error in the error queue of this thread, and clears
// the queue. Returns `otherwise` if there is none.
std::string take_openssl_reason(const std::string& otherwise);

}  // namespace ddprun
