// Facts about the endpoint where the nodes meet, for `ddprun doctor`. Every wait has a deadline.
// Any thread.
#pragma once

#include <string>
#include <vector>

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

struct EndpointSeen {
  EndpointFacts facts;
  std::vector<LookUp> names;  // of the addresses at both ends
};

// Resolves the name and connects to each of its addresses (at most four). Asks what is there. If
// the endpoint is on this host and not served, tries to listen there. Takes about ten seconds at
// most.
EndpointSeen look_at_endpoint(const EndpointRequest& request);

// Returns this host's address towards another, by the kernel's routes. Empty: no route. Sends
// nothing.
std::string source_address_towards(const SocketAddress& address);

}  // namespace ddprun
