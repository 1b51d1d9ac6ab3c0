// HostPort: a host and a TCP port as people write them: "10.0.0.1:29500", "[::1]:0",
// "node7:29500", "*:29500". A value type; any thread. Nothing here resolves names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"

namespace ddprun {

struct HostPort {
  std::string host;  // without brackets
  std::uint16_t port = 0;

  friend bool operator==(const HostPort&, const HostPort&) = default;
};

// Parses a host and a port. kInvalidArgument says what is wrong with the text. The host may be
// empty (":29500"). The port may be left out if there is a default for it, also after an IPv6
// address without brackets.
Result<HostPort> parse_host_port(std::string_view text,
                                 std::optional<std::uint16_t> default_port = std::nullopt);

// PortRange: ports from first to last, both included. {0, 0}: any free port.
struct PortRange {
  std::uint16_t first = 0;
  std::uint16_t last = 0;

  friend bool operator==(const PortRange&, const PortRange&) = default;
};

// Parses "29500-29599", or one port: "29500". kInvalidArgument says what is wrong with the
// text.
Result<PortRange> parse_port_range(std::string_view text);

// Returns whether the text of the host means this machine, by an address that only this machine
// can reach: "localhost" or a numeric loopback address ("127.example.org" is a name).
bool is_loopback_host(std::string_view host);

// Returns "10.0.0.1:29500", "[::1]:29500" or "node7:29500".
std::string to_text(const HostPort& address);
// Returns "29500-29599".
std::string to_text(PortRange ports);

}  // namespace ddprun
