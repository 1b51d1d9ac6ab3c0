// Network, AddressSet: sets of addresses and networks, for --local-addr, --store-allow and the
// allow-list of a store.
//
// They hold IPv4 and IPv6. An IPv4 address inside an IPv6 one counts as IPv4. Value types; any
// thread.
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
  // Parses "10.1.0.0/16", "fd00::/8", or one address: "10.0.0.7". kInvalidArgument for anything
  // else.
  static Result<Network> parse(std::string_view text);

  bool contains(const SocketAddress& address) const;

 private:
  std::array<unsigned char, 16> prefix_{};  // in IPv6 form
  int bits_ = 0;                            // number of leading bits that must match
};

class AddressSet {
 public:
  // Parses networks and addresses: "10.1.0.0/16,10.0.0.7". kInvalidArgument names the part that
  // is neither.
  static Result<AddressSet> parse(std::string_view text);

  void add(const Network& network) { networks_.push_back(network); }
  // Adds a numeric address. Ignores any other text.
  void add(const std::string& address);

  bool contains(const SocketAddress& address) const;

 private:
  std::vector<Network> networks_;
  // In the form of SocketAddress::host(). They are kept apart from the networks for speed: a job
  // of ten thousand nodes has as many, and each connection is looked up.
  std::unordered_set<std::string> addresses_;
};

}  // namespace ddprun
