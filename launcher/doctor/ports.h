// TCP ports of this host: who has them, which are free, which the kernel gives away. Facts for
// `ddprun doctor`; looks at /proc. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"

namespace ddprun {

// Who listens on the port, "python3 (pid 4711)"; empty: nobody, or it may not be seen.
std::string holder_of_port(std::uint16_t port);

// Whether this host could listen there. host: as listen_tcp() takes it.
ListenTry try_to_listen(const HostPort& address);

// How many of the ports can be listened on.
PortRangeFacts count_free(PortRange range);

// net.ipv4.ip_local_port_range; nullopt: the kernel does not say.
std::optional<PortRange> ephemeral_ports();

// net.ipv4.ip_local_reserved_ports.
std::vector<PortRange> reserved_ports();

// The ranges of "8080,9148-9200"; what is none is left out.
std::vector<PortRange> parse_port_ranges(const std::string& text);

}  // namespace ddprun
