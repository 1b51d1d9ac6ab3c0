// Sha256: the SHA-256 of bytes that come in pieces, by OpenSSL. One owner thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

struct evp_md_ctx_st;

namespace ddprun {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(const void* data, std::size_t bytes);

  // Returns 64 lower-case hexadecimal digits. Ends the digest: call it once.
  std::string hex();

 private:
  evp_md_ctx_st* context_;
};

std::string sha256_hex(std::string_view bytes);

}  // namespace ddprun
