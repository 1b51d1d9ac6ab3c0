// OpenSSL's newer functions do not show their state.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "worker_lib/util/chained_sha256.h"

#include <openssl/sha.h>

#include <algorithm>
#include <charconv>
#include <iterator>

#include "base/assert.h"
#include "base/hex.h"

namespace ddprun {
namespace {

constexpr std::size_t kWordDigits = 8;

}  // namespace

struct ChainedSha256::Context {
  SHA256_CTX sha;
};

ChainedSha256::ChainedSha256() : context_(std::make_unique<Context>()) {
  DDPRUN_ASSERT(SHA256_Init(&context_->sha) == 1, "OpenSSL has SHA-256");
}

ChainedSha256::ChainedSha256(std::string_view state, std::uint64_t bytes) : ChainedSha256() {
  DDPRUN_ASSERT(is_state(state) && bytes % kBlockBytes == 0, "a state lies between blocks");
  SHA256_CTX& sha = context_->sha;
  for (std::size_t i = 0; i < std::size(sha.h); ++i) {
    const char* const digits = state.data() + i * kWordDigits;
    std::uint32_t word = 0;
    std::from_chars(digits, digits + kWordDigits, word, 16);
    sha.h[i] = word;
  }
  const std::uint64_t bits = bytes * 8;
  sha.Nl = static_cast<std::uint32_t>(bits);
  sha.Nh = static_cast<std::uint32_t>(bits >> 32);
}

ChainedSha256::~ChainedSha256() = default;

void ChainedSha256::add(const void* data, std::size_t bytes) {
  DDPRUN_ASSERT(SHA256_Update(&context_->sha, data, bytes) == 1, "OpenSSL can hash");
}

std::string ChainedSha256::state() const {
  const SHA256_CTX& sha = context_->sha;
  DDPRUN_ASSERT(sha.num == 0, "a state lies between blocks");
  unsigned char bytes[sizeof sha.h];
  for (std::size_t i = 0; i < sizeof bytes; ++i)
    bytes[i] = static_cast<unsigned char>(sha.h[i / 4] >> (24 - 8 * (i % 4)));
  return to_hex({bytes, sizeof bytes});
}

std::string ChainedSha256::hex() {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  DDPRUN_ASSERT(SHA256_Final(digest, &context_->sha) == 1, "a digest is ended once");
  return to_hex({digest, sizeof digest});
}

bool ChainedSha256::is_state(std::string_view text) {
  return text.size() == kStateDigits && std::ranges::all_of(text, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace ddprun
