// Facts about TCP ports of this host, for `ddprun doctor`: which process has them, which are
// free, which the kernel gives to connections. Reads /proc. Any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/doctor/core/facts.h"

namespace ddprun {

// Returns the process that listens on the port, "python3 (pid 4711)". Empty: none, or not
// visible.
std::string holder_of_port(std::uint16_t port);

// Tries whether this host could listen there. host: as listen_tcp() takes it.
ListenTry try_to_listen(const HostPort& address);

// Counts the ports of the range on which this host could listen.
PortRangeFacts count_free(PortRange range);

// Reads net.ipv4.ip_local_port_range; nullopt: the kernel does not say.
std::optional<PortRange> ephemeral_ports();

// Reads net.ipv4.ip_local_reserved_ports.
std::vector<PortRange> reserved_ports();

// Returns the ranges of "8080,9148-9200". Skips parts that are not ranges.
std::vector<PortRange> parse_port_ranges(const std::string& text);

}  // namespace ddprun
