// Facts about etcd, where the agents of a job elect the one that runs the service, for `ddprun
// doctor`. Every wait has a deadline. Any thread.
#pragma once

#include "launcher/doctor/core/facts.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/auth/tls_context.h"

namespace ddprun {

// tls: null for http.
struct EtcdAsked {
  EtcdPlace place;
  TlsContextPtr tls;
};

// Asks each member for its version and its alarms. Then writes a small key, and removes it. Takes
// about five seconds at most.
EtcdFacts look_at_etcd(const EtcdAsked& asked);

}  // namespace ddprun
