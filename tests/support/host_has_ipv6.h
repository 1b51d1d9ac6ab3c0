// host_has_ipv6(): returns whether tests of IPv6 can run on this machine.
#pragma once

#include "rendezvous/net/listen.h"

namespace ddprun::testing_support {

inline bool host_has_ipv6() { return listen_tcp({.host = "::1", .port = 0}).has_value(); }

}  // namespace ddprun::testing_support
