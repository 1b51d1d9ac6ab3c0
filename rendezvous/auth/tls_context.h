// TlsContext: certificate, key and authority for TLS on the control port, read from files.
//
// Never changed after it was made, so connections share it; who reads the files again makes a new
// one, which counts for connections made from then on. Making one reads files and may block.
// Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"

// OpenSSL's SSL_CTX and SSL; base/openssl_loader.h, which has its headers, is included by tls_context.cc and tls_channel.cc alone.
struct ssl_ctx_st;
struct ssl_st;

namespace ddprun {

// --rdzv-tls-cert, --rdzv-tls-key and --rdzv-tls-ca, as given: files in PEM.
struct TlsFiles {
  // Instead of a file with authorities, in `ca`: those that this system trusts.
  static constexpr const char* kSystem = "system";

  std::string cert;  // the certificate, and those between it and the authority
  std::string key;   // its private key, without a passphrase
  std::string ca;    // the authorities that the other side's certificate has to come from

  bool is_given() const { return !cert.empty() || !key.empty() || !ca.empty(); }
  // Whether `ca` names a file.
  bool has_authority() const { return !ca.empty() && ca != kSystem; }
};

class TlsContext;
using TlsContextPtr = std::shared_ptr<const TlsContext>;

struct FoundTls {
  TlsContextPtr context;
  std::string remark;  // for the log; empty: nothing is odd about the files
};

class TlsContext {
 public:
  // For the side that accepts. Needs cert and key; with ca it demands of whoever connects a
  // certificate that comes from it. kInvalidArgument, or the system's word about a file: one line
  // with the option and the file.
  static Result<FoundTls> for_service(const TlsFiles& files);
  // For the side that connects. The service's certificate has to come from ca, or without it from
  // an authority that this system trusts. cert and key, or neither: what a service that demands a
  // certificate is shown.
  static Result<FoundTls> for_agent(const TlsFiles& files);

  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

  // Whoever connects must have a certificate: nobody else gets past the TLS handshake.
  bool demands_certificates() const { return demands_certificates_; }

  // For TlsChannel.
  ssl_ctx_st* get() const { return context_; }

 private:
  explicit TlsContext(ssl_ctx_st* context) : context_(context) {}
  static Result<FoundTls> read(TlsContext& context, const TlsFiles& files);

  ssl_ctx_st* context_;
  bool demands_certificates_ = false;
};

// What OpenSSL says of the oldest failure of this thread that it has not been asked about, and
// forgets all of them; `otherwise` where it has nothing to say.
std::string take_openssl_reason(const std::string& otherwise);

}  // namespace ddprun
