// Detects the kind of client from the first bytes of a connection, if one port serves several
// kinds.
//
//   kControlMagic          an agent (rendezvous/protocol/control_codec.h)
//   another letter first   HTTP: a request begins with the name of its method
//   16 03                  TLS: a handshake record; an agent or HTTP begins inside it
//   anything else          a client of the store: it begins with an opcode, which is not a letter
//
// A pure function; any thread.
#pragma once

#include <optional>
#include <string_view>

namespace ddprun {

inline constexpr std::string_view kControlMagic = "DDPR";

enum class ClientKind { kAgent, kHttp, kTls, kStoreClient };

// Returns the kind; nullopt: more bytes are needed. Two bytes always suffice.
std::optional<ClientKind> client_kind_of(std::string_view first_bytes);

}  // namespace ddprun
