#include "launcher/local_address.h"

#include <boost/asio/ip/address.hpp>
#include <set>

#include "rendezvous/address_set.h"

namespace ddprun {
namespace {

namespace ip = boost::asio::ip;
using boost::system::error_code;

ip::address parsed(const SocketAddress& address) {
  error_code ignored;  // what host() writes can be read
  return ip::make_address(address.host(), ignored);
}

std::string names_of(const std::vector<InterfaceAddress>& own) {
  std::set<std::string> names;
  for (const InterfaceAddress& one : own) names.insert(one.interface);
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text.empty() ? "there is none" : text;
}

std::string addresses_of(const std::vector<InterfaceAddress>& own) {
  std::string text;
  for (const InterfaceAddress& one : own) {
    text += (text.empty() ? "" : ", ") + one.address.host() + " (" + one.interface + ")";
  }
  return text.empty() ? "it has none" : text;
}

Result<std::string> find_in_network(const std::string& wanted,
                                    const std::vector<InterfaceAddress>& own) {
  const Result<Network> network = Network::parse(wanted);
  if (!network) return network.error();
  for (const InterfaceAddress& one : own) {
    if (network->contains(one.address)) return one.address.host();
  }
  return invalid_argument("no address of this host is in " + wanted +
                          "; its addresses: " + addresses_of(own));
}

// Empty: there is no such interface, or it has no address of use.
std::string find_at_interface(const std::string& wanted, const std::vector<InterfaceAddress>& own) {
  std::string found;
  for (const InterfaceAddress& one : own) {
    if (one.interface != wanted) continue;
    const ip::address address = parsed(one.address);
    if (address.is_v4()) return one.address.host();
    if (found.empty() && !address.to_v6().is_link_local()) found = one.address.host();
  }
  return found;
}

}  // namespace

Result<std::string> find_local_address(const std::string& wanted,
                                       const std::vector<InterfaceAddress>& own, Duration allowed) {
  if (numeric_address({wanted, 0})) return wanted;
  if (wanted.find('/') != std::string::npos) return find_in_network(wanted, own);
  if (std::string found = find_at_interface(wanted, own); !found.empty()) return found;
  Result<std::vector<SocketAddress>> named = resolve({wanted, 0}, allowed);
  if (named) return named->front().host();
  return invalid_argument("'" + wanted + "' is no address, no interface of this host (" +
                          names_of(own) +
                          ") and no name that leads to one: " + named.error().message());
}

}  // namespace ddprun
