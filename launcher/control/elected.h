// Finds the node that a job has elected to run its service (--rdzv-backend=etcd), for commands. It
// blocks its caller. Any thread.
#pragma once

#include "base/host_port.h"
#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/auth/tls_context.h"

namespace ddprun {

// Returns the address of the service that leads. Waits as long as an election may take. Errors:
// kPeerLost     no node leads: the job has ended, or never ran
// kProtocol     another program uses the key
// kConnection, kTimeout, ...   no member of etcd can be asked
Result<HostPort> find_elected(const EtcdPlace& etcd, const TlsContextPtr& tls);

}  // namespace ddprun
