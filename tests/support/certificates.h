// Authorities and the certificates that they sign, as PEM files. They are made when a test runs.
// Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"

struct evp_pkey_st;
struct x509_st;

namespace ddprun::testing_support {

// IssuedFiles: the paths of an issued certificate and its key. Only the owner can read the key
// file.
struct IssuedFiles {
  std::string cert;
  std::string key;
};

struct CertificateOptions {
  // The names that the certificate is valid for, in OpenSSL's notation. For a service: the host
  // name or address of its endpoint.
  std::string names = "DNS:localhost,IP:127.0.0.1,IP:::1";
  // Counted from now. If negative, the certificate has expired.
  Duration valid_for = std::chrono::hours(1);
  bool rsa = false;  // false: P-256
};

// Authority: a certificate authority that issues certificates. Its own certificate is
// DIR/NAME.ca.
class Authority {
 public:
  Authority(std::string directory, std::string name);
  // Takes an authority that another program has made.
  Authority(std::string directory, const std::string& ca_file, const std::string& key_file);

  std::string ca_file() const { return directory_ + "/" + name_ + ".ca"; }
  // Issues DIR/FILE.crt and DIR/FILE.key. Replaces the files of an earlier call.
  IssuedFiles issue(const std::string& file, const CertificateOptions& options = {}) const;

 private:
  std::string directory_;
  std::string name_;
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

}  // namespace ddprun::testing_support
