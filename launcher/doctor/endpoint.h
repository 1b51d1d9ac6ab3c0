// Facts about the endpoint where the nodes meet, for `ddprun doctor`. Every wait has a deadline.
// Any thread.
#pragma once

#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"
#include "launcher/doctor/service.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

struct EndpointSeen {
  EndpointFacts facts;
  std::vector<LookUp> names;  // of the addresses at both ends
};

// Resolves the name and connects to each of its addresses (at most four). Asks what is there. If
// the endpoint is on this host and not served, tries to listen there. Takes about ten seconds at
// most.
EndpointSeen look_at_endpoint(const EndpointRequest& request);

}  // namespace ddprun
