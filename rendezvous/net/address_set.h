// Addresses and networks, and who is in them: --local-addr, --store-allow, a store's allow-list.
//
// IPv4 and IPv6 alike; an IPv4 address inside an IPv6 one counts as IPv4. Value types; any thread.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/result.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

class Network {
 public:
  // "10.1.0.0/16", "fd00::/8", or one address: "10.0.0.7". kInvalidArgument for anything else.
  static Result<Network> parse(std::string_view text);

  bool contains(const SocketAddress& address) const;

 private:
  std::array<unsigned char, 16> prefix_{};  // as IPv6
  int bits_ = 0;                            // of it that count
};

class AddressSet {
 public:
  // "10.1.0.0/16,10.0.0.7": networks and addresses. kInvalidArgument names the part that is neither.
  static Result<AddressSet> parse(std::string_view text);

  void add(const Network& network) { networks_.push_back(network); }
  // Numeric; no effect for anything else.
  void add(const std::string& address);

  bool contains(const SocketAddress& address) const;

 private:
  std::vector<Network> networks_;
  // As SocketAddress::host() writes them; apart from the networks because a job of ten thousand nodes
  // has as many, and each connection asks.
  std::unordered_set<std::string> addresses_;
};

}  // namespace ddprun
