#include "worker_lib/util/sha256.h"

#include <openssl/evp.h>

#include "base/assert.h"
#include "base/hex.h"

namespace ddprun {

// These calls fail only if memory runs out or OpenSSL's provider is broken.
Sha256::Sha256() : context_(EVP_MD_CTX_new()) {
  DDPRUN_ASSERT(context_ && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1,
                "OpenSSL has SHA-256");
}

Sha256::~Sha256() { EVP_MD_CTX_free(context_); }

void Sha256::add(const void* data, std::size_t bytes) {
  DDPRUN_ASSERT(EVP_DigestUpdate(context_, data, bytes) == 1, "OpenSSL can hash");
}

std::string Sha256::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  DDPRUN_ASSERT(EVP_DigestFinal_ex(context_, digest, &size) == 1, "a digest is ended once");
  return to_hex({digest, size});
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 digest;
  digest.add(bytes.data(), bytes.size());
  return digest.hex();
}

}  // namespace ddprun
