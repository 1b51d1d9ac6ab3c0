// Who is calling, where one port serves several kinds of caller: the first bytes of a connection
// tell.
//
//   kControlMagic          an agent (rendezvous/protocol/control_codec.h)
//   another letter first   HTTP: a request begins with the name of its method
//   16 03                  TLS: a handshake record; inside it an agent or HTTP begins anew
//   anything else          a client of the store: it begins with an opcode, which is no letter
//
// A pure function; any thread.
#pragma once

#include <optional>
#include <string_view>

namespace ddprun {

inline constexpr std::string_view kControlMagic = "DDPR";

enum class ClientKind { kAgent, kHttp, kTls, kStoreClient };

// nullopt: more bytes are needed to tell; two always suffice.
std::optional<ClientKind> client_kind_of(std::string_view first_bytes);

}  // namespace ddprun
