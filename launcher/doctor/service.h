// Facts about what answers at the endpoint, for `ddprun doctor`: a rendezvous service of ddprun,
// one that requires TLS or a key, or another program. Every wait has a deadline. Any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/secret.h"
#include "launcher/doctor/core/facts.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// How an agent of the job would connect to the endpoint.
struct EndpointRequest {
  std::string option;  // that named it
  HostPort address;
  NodeRange nodes;
  std::string job;
  TlsContextPtr tls;   // null: without TLS
  Secret key;          // of the job; empty: none
  Secret key_for_all;  // for reading the service's pages; empty: none
};

// Reads the status page of the service at one of the endpoint's addresses. If there is a key,
// also goes through an agent's handshake and leaves before it would join, so no job is affected.
ServiceAnswer ask_service(const EndpointRequest& endpoint, const SocketAddress& address);

// Interprets an answer to GET /status.json. heard: the bytes received, perhaps truncated. ours:
// this host's time when the answer was given, since 1970.
ServiceAnswer read_status_answer(std::string_view heard, Duration ours);

// Parses "2026-11-22T11:50:53.123Z" as a time since 1970. nullopt: invalid.
std::optional<Duration> parse_utc(const std::string& text);

}  // namespace ddprun
