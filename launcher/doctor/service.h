// Who answers where the nodes meet: a rendezvous service of ddprun's, one that wants TLS or a key,
// or another program. Facts for `ddprun doctor`. Every wait has a deadline; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/secret.h"
#include "launcher/doctor/core/facts.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// How an agent of the job would speak there.
struct ServiceQuestion {
  SocketAddress address;
  HostPort named;  // as the user has named it: for TLS
  std::string job;
  TlsContextPtr tls;        // null: without
  Secret key;               // of the job; empty: none
  Secret key_for_all;       // that the service's pages are read with; empty: none
};

// Reads the service's status page and, where there is a key, goes through the handshake of an agent,
// and leaves before it would join: no job notices.
ServiceAnswer ask_service(const ServiceQuestion& question);

// What an answer to GET /status.json says of who gave it. `heard`: what has come of it, perhaps cut
// off. ours: the time here when it was given, since 1970.
ServiceAnswer read_status_answer(std::string_view heard, Duration ours);

// The time of "2026-11-22T11:50:53.123Z", since 1970; nullopt: it is none.
std::optional<Duration> parse_utc(const std::string& text);

}  // namespace ddprun
