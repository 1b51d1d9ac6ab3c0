#include "rendezvous/auth/core/proof.h"

#include <array>

#include "base/assert.h"
#include "base/hex.h"
#include "base/openssl_loader.h"
#include "base/parse_number.h"

namespace ddprun {
namespace {

std::string hmac_hex(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  DDPRUN_ASSERT(openssl().HMAC(openssl().EVP_sha256(), key.data(), static_cast<int>(key.size()),
                               reinterpret_cast<const unsigned char*>(text.data()), text.size(),
                               digest.data(), &size) != nullptr,
                "OpenSSL has HMAC-SHA256");
  return to_hex({digest.data(), size});
}

// Adds a field with its length, so that different lists of fields never make the same text.
void add(std::string& text, std::string_view field) {
  text += std::to_string(field.size()) + ":";
  text += field;
}

// Returns the purpose and all exchanged fields.
std::string text_of(std::string_view purpose, const Introduction& introduction) {
  std::string text;
  add(text, purpose);
  add(text, std::to_string(introduction.protocol));
  add(text, introduction.version);
  add(text, introduction.job);
  add(text, introduction.agent_nonce);
  add(text, introduction.service_nonce);
  if (!introduction.channel.empty()) add(text, introduction.channel);
  return text;
}

std::string cookie_of(const std::string& purpose, std::string_view key, std::int64_t until_s) {
  const std::string until = std::to_string(until_s);
  return until + "-" + hmac_hex(key, purpose + until);
}

bool is_cookie(std::string_view cookie, std::string (*right_one)(std::string_view, std::int64_t),
               std::string_view key, std::int64_t now_s) {
  const auto until = parse_number<std::int64_t>(cookie.substr(0, cookie.find('-')));
  return until && now_s < *until && is_same_secret(cookie, right_one(key, *until));
}

}  // namespace

std::string proof_of(Side side, std::string_view key, const Introduction& introduction) {
  const char* purpose = side == Side::kAgent ? "ddprun agent" : "ddprun service";
  return hmac_hex(key, text_of(purpose, introduction));
}

std::string statement_of(Side side, const Introduction& introduction) {
  const char* purpose = side == Side::kAgent ? "ddprun munge agent" : "ddprun munge service";
  const std::string text = text_of(purpose, introduction);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned size = 0;
  DDPRUN_ASSERT(openssl().EVP_Digest(text.data(), text.size(), digest.data(), &size,
                                     openssl().EVP_sha256(), nullptr),
                "OpenSSL has SHA-256");
  return to_hex({digest.data(), size});
}

std::string read_token_of(std::string_view key) { return hmac_hex(key, "ddprun read token"); }

std::string write_token_of(std::string_view key) { return hmac_hex(key, "ddprun write token"); }

std::string read_cookie_of(std::string_view key, std::int64_t until_s) {
  return cookie_of("ddprun read cookie ", key, until_s);
}

std::string write_cookie_of(std::string_view key, std::int64_t until_s) {
  return cookie_of("ddprun write cookie ", key, until_s);
}

bool is_read_cookie(std::string_view cookie, std::string_view key, std::int64_t now_s) {
  return is_cookie(cookie, read_cookie_of, key, now_s);
}

bool is_write_cookie(std::string_view cookie, std::string_view key, std::int64_t now_s) {
  return is_cookie(cookie, write_cookie_of, key, now_s);
}

bool is_same_secret(std::string_view a, std::string_view b) {
  return a.size() == b.size() && openssl().CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace ddprun
