#include "base/host_port.h"

#include <arpa/inet.h>

#include <algorithm>

#include "base/is_control.h"
#include "base/parse_number.h"

namespace ddprun {
namespace {

bool is_ipv6_address(std::string_view text) {
  const std::string address(text.substr(0, text.find('%')));
  in6_addr bytes{};
  return inet_pton(AF_INET6, address.c_str(), &bytes) == 1;
}

// Returns false for what no resolver accepts: a space, or a part of a URL.
bool is_host(std::string_view text) {
  return std::ranges::none_of(
      text, [](char c) { return is_control(c) || c == ' ' || c == '/' || c == '@'; });
}

}  // namespace

Result<HostPort> parse_host_port(std::string_view text, std::optional<std::uint16_t> default_port) {
  std::string_view host = text;
  std::optional<std::string_view> port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return invalid_value(text, "the ] is missing");
    host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && rest.front() != ':') return invalid_value(text, "expected [ADDRESS]:PORT");
    if (!rest.empty()) port = rest.substr(1);
  } else if (const std::size_t colon = text.find(':'); text.rfind(':') != colon) {
    // An IPv6 address without brackets is accepted only without a port, where there is a
    // default port.
    if (!default_port || !is_ipv6_address(text)) {
      return invalid_value(text, "expected HOST:PORT, or [ADDRESS]:PORT for an IPv6 address");
    }
  } else if (colon != std::string_view::npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (!is_host(host)) {
    return invalid_value(text, "'" + std::string(host) + "' is not a host name or address");
  }
  if (!port) {
    if (!default_port) return invalid_value(text, "expected HOST:PORT");
    return HostPort{.host = std::string(host), .port = *default_port};
  }
  const std::optional<std::uint16_t> number = parse_number<std::uint16_t>(*port);
  if (!number) return invalid_value(text, "the port must be a number from 0 to 65535");
  return HostPort{.host = std::string(host), .port = *number};
}

Result<PortRange> parse_port_range(std::string_view text) {
  const std::size_t dash = std::min(text.find('-'), text.size());
  const std::optional<std::uint16_t> first = parse_number<std::uint16_t>(text.substr(0, dash));
  const std::optional<std::uint16_t> last =
      dash == text.size() ? first : parse_number<std::uint16_t>(text.substr(dash + 1));
  if (!first || !last || *first == 0) {
    return invalid_value(text, "expected FIRST-LAST, ports from 1 to 65535");
  }
  if (*first > *last) return invalid_value(text, "the first port is larger than the last one");
  return PortRange{*first, *last};
}

bool is_loopback_host(std::string_view host) {
  return host == "localhost" || host == "::1" ||
         (host.starts_with("127.") &&
          host.find_first_not_of("0123456789.") == std::string_view::npos);
}

std::string to_text(const HostPort& address) {
  const bool bare_ipv6 = address.host.find(':') != std::string::npos;
  return (bare_ipv6 ? "[" + address.host + "]" : address.host) + ":" + std::to_string(address.port);
}

std::string to_text(PortRange ports) {
  return std::to_string(ports.first) + "-" + std::to_string(ports.last);
}

}  // namespace ddprun
