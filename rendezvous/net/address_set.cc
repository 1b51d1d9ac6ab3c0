#include "rendezvous/net/address_set.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "base/parse_number.h"

namespace ddprun {
namespace {

using Bytes = std::array<unsigned char, 16>;
constexpr int kIpv4Prefix = 96;  // ::ffff:0:0/96

struct Parsed {
  Bytes bytes{};
  bool is_ipv4 = false;
};

std::optional<Parsed> bytes_of(const SocketAddress& address) {
  Parsed parsed;
  if (address.family() == AF_INET6) {
    const auto& in = reinterpret_cast<const sockaddr_in6&>(address.storage);
    std::memcpy(parsed.bytes.data(), &in.sin6_addr, 16);
    return parsed;
  }
  if (address.family() != AF_INET) return std::nullopt;
  const auto& in = reinterpret_cast<const sockaddr_in&>(address.storage);
  parsed.bytes[10] = parsed.bytes[11] = 0xff;
  std::memcpy(parsed.bytes.data() + 12, &in.sin_addr, 4);
  parsed.is_ipv4 = true;
  return parsed;
}

// Parses strictly: getaddrinfo would read 10.1 as 10.0.0.1.
std::optional<Parsed> bytes_of(const std::string& text) {
  SocketAddress address;
  in_addr ipv4{};
  in6_addr ipv6{};
  if (inet_pton(AF_INET, text.c_str(), &ipv4) == 1) {
    auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
    in.sin_family = AF_INET;
    in.sin_addr = ipv4;
  } else if (inet_pton(AF_INET6, text.c_str(), &ipv6) == 1) {
    auto& in = reinterpret_cast<sockaddr_in6&>(address.storage);
    in.sin6_family = AF_INET6;
    in.sin6_addr = ipv6;
  } else {
    return std::nullopt;
  }
  return bytes_of(address);
}

}  // namespace

Result<Network> Network::parse(std::string_view text) {
  const Error wrong = invalid_value(
      text, "expected an address or a network, such as 10.0.0.7, 10.1.0.0/16, fd00::/8");
  const std::size_t slash = text.find('/');
  const std::optional<Parsed> parsed = bytes_of(std::string(text.substr(0, slash)));
  if (!parsed) return wrong;
  const int most = parsed->is_ipv4 ? 32 : 128;
  int bits = most;
  if (slash != text.npos) {
    bits = parse_number<int>(text.substr(slash + 1)).value_or(-1);
    if (bits < 0 || bits > most) return wrong;
  }
  Network network;
  network.prefix_ = parsed->bytes;
  network.bits_ = bits + (parsed->is_ipv4 ? kIpv4Prefix : 0);
  return network;
}

bool Network::contains(const SocketAddress& address) const {
  const std::optional<Parsed> parsed = bytes_of(address);
  if (!parsed) return false;
  const std::size_t whole = static_cast<std::size_t>(bits_) / 8;
  if (!std::equal(prefix_.begin(), prefix_.begin() + whole, parsed->bytes.begin())) return false;
  const int rest = bits_ % 8;
  return rest == 0 || ((prefix_[whole] ^ parsed->bytes[whole]) >> (8 - rest)) == 0;
}

Result<AddressSet> AddressSet::parse(std::string_view text) {
  AddressSet set;
  while (true) {
    const std::size_t comma = text.find(',');
    const Result<Network> network = Network::parse(text.substr(0, comma));
    if (!network) return network.error();
    set.add(*network);
    if (comma == text.npos) return set;
    text.remove_prefix(comma + 1);
  }
}

void AddressSet::add(const std::string& address) {
  if (const auto numeric = numeric_address({address, 0})) addresses_.insert(numeric->host());
}

bool AddressSet::contains(const SocketAddress& address) const {
  return addresses_.contains(address.host()) ||
         std::any_of(networks_.begin(), networks_.end(),
                     [&](const Network& network) { return network.contains(address); });
}

}  // namespace ddprun
