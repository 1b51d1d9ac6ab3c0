// Certificates for tests, made when a test runs: authorities, and what they sign, as files in PEM.
// Any thread.
#pragma once

#include <memory>
#include <string>

#include "base/clock.h"

struct evp_pkey_st;
struct x509_st;

namespace ddprun::testing_support {

// Where what was issued lies. The key can be read by its owner alone.
struct IssuedFiles {
  std::string cert;
  std::string key;
};

struct CertificateOptions {
  // Who it is for, as OpenSSL writes it; for a service the name or address of its endpoint.
  std::string names = "DNS:localhost,IP:127.0.0.1,IP:::1";
  // From now; in the past: it has expired.
  Duration valid_for = std::chrono::hours(1);
  bool rsa = false;  // else P-256
};

// An authority whose certificate is DIR/NAME.ca.
class Authority {
 public:
  Authority(std::string directory, std::string name);

  std::string ca_file() const { return directory_ + "/" + name_ + ".ca"; }
  // DIR/FILE.crt and DIR/FILE.key; those of an earlier call are replaced.
  IssuedFiles issue(const std::string& file, const CertificateOptions& options = {}) const;

 private:
  std::string directory_;
  std::string name_;
  std::shared_ptr<evp_pkey_st> key_;
  std::shared_ptr<x509_st> certificate_;
};

}  // namespace ddprun::testing_support
