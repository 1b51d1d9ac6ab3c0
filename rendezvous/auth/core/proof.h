// Proofs by which a peer shows that it holds a key, without revealing the key. A proof is an
// HMAC-SHA256 (RFC 2104, FIPS 198-1), by OpenSSL, over all fields that the two sides have
// exchanged. Without a key, munge certifies a statement over the same fields. Pure functions; any
// thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

inline constexpr int kNonceBytes = 16;  // random bytes, written in hexadecimal

// Introduction: the fields of a handshake that both sides have seen. Each side adds a nonce that
// it has never used before. So a proof is worthless on any other connection.
struct Introduction {
  int protocol = 0;
  std::string version;  // of the agent's ddprun
  std::string job;
  std::string agent_nonce;
  std::string service_nonce;
  // TLS's identity of this connection (TlsChannel::binding()); empty without TLS.
  std::string channel;
};

enum class Side { kAgent, kService };

// Returns the proof, 64 hexadecimal digits. It differs between the two sides, so that a peer
// cannot return a proof that it received.
std::string proof_of(Side side, std::string_view key, const Introduction& introduction);

// Returns the payload of a munge credential, 64 hexadecimal digits (SHA-256): the same fields
// without a key. munge detects a replay only on the node that has read the credential before.
// The nonces in the payload detect it on all others.
std::string statement_of(Side side, const Introduction& introduction);

// Returns the token that authorizes reading the service's pages (HTTP `Authorization: Bearer`):
// 64 hexadecimal digits. It is derived from the key; the key cannot be derived from it.
std::string read_token_of(std::string_view key);
// Returns the token that also authorizes pressing the buttons of the pages. It has the same form.
std::string write_token_of(std::string_view key);

// Return the cookies that authorize the same until then (a calendar time in seconds), for a
// browser. A browser may show a cookie to other services of the same host, so it is not the token,
// and it ends.
std::string read_cookie_of(std::string_view key, std::int64_t until_s);
std::string write_cookie_of(std::string_view key, std::int64_t until_s);
// Return whether it is such a cookie of this key, and has not ended.
bool is_read_cookie(std::string_view cookie, std::string_view key, std::int64_t now_s);
bool is_write_cookie(std::string_view cookie, std::string_view key, std::int64_t now_s);

// Returns true if they are equal. The time does not depend on where they differ.
bool is_same_secret(std::string_view a, std::string_view b);

}  // namespace ddprun
