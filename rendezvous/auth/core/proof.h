// Proofs that somebody holds a key, without showing it: HMAC-SHA256 (RFC 2104, FIPS 198-1) by
// OpenSSL over everything that the two sides have said of themselves; and what they have munge put
// its seal on instead, where there is no key. Pure functions; any thread.
#pragma once

#include <string>
#include <string_view>

namespace ddprun {

inline constexpr int kNonceBytes = 16;  // random ones, written in hexadecimal

// What both sides of a handshake have seen. Each adds a nonce that it has never used before, so no
// proof is ever worth anything on another connection.
struct Introduction {
  int protocol = 0;
  std::string version;  // of the agent's ddprun
  std::string job;
  std::string agent_nonce;
  std::string service_nonce;
  std::string channel;  // what TLS calls this connection (TlsChannel::binding()); empty without TLS
};

enum class Side { kAgent, kService };

// 64 hexadecimal digits. The two sides prove different things: no proof can be handed back.
std::string proof_of(Side side, std::string_view key, const Introduction& introduction);

// The payload of a munge credential, 64 hexadecimal digits (SHA-256): the same, without a key. Munge
// takes a replay for new on every node but the one that has seen it before; the nonces in here tell.
std::string statement_of(Side side, const Introduction& introduction);

// What a reader of the service's pages shows (HTTP `Authorization: Bearer`): 64 hexadecimal digits
// that follow from the key, and that the key does not follow from.
std::string read_token_of(std::string_view key);

// Whether they are the same, in a time that does not tell where they differ.
bool is_same_secret(std::string_view a, std::string_view b);

}  // namespace ddprun
