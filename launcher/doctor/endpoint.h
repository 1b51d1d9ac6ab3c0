// The way to where the nodes meet: facts for `ddprun doctor`. Every wait has a deadline; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/secret.h"
#include "launcher/doctor/core/facts.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// How an agent of the job would go there.
struct EndpointWish {
  std::string option;  // that named it
  HostPort address;
  NodeRange nodes;
  std::string job;
  TlsContextPtr tls;        // null: without
  Secret key;               // of the job; empty: none
  Secret key_for_all;       // that the service's pages are read with; empty: none
};

struct EndpointSeen {
  EndpointFacts facts;
  std::vector<LookUp> names;  // of the addresses at both ends
};

// Looks the name up, connects to each of its addresses, asks who is there, and tries to listen there
// where it is this host. Takes some ten seconds at most.
EndpointSeen look_at_endpoint(const EndpointWish& command);

// This host's address towards another, as the kernel chooses it; empty: there is no way. Nothing is
// sent.
std::string source_address_towards(const SocketAddress& address);

}  // namespace ddprun
