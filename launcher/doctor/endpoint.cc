#include "launcher/doctor/endpoint.h"

#include <algorithm>
#include <cerrno>
#include <set>

#include "base/deadline.h"
#include "launcher/doctor/names.h"
#include "launcher/doctor/ports.h"
#include "launcher/process/side_by_side.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/local_address.h"

namespace ddprun {
namespace {

// A lost SYN is sent again after one second and after three.
constexpr Duration kConnectPatience = std::chrono::milliseconds(3500);
constexpr std::size_t kMostTries = 4;

ConnectTry try_to_connect(const SocketAddress& address) {
  const Deadline deadline(kConnectPatience);
  const Result<BlockingSocket> socket = BlockingSocket::connect(address, deadline);
  ConnectTry seen{.address = address.host(),
                  .took = deadline.waited(),
                  .source = source_address_towards(address)};
  if (socket) {
    seen.outcome = ConnectTry::Outcome::kConnected;
  } else if (socket.error().kind == ErrorKind::kTimeout) {
    seen.outcome = ConnectTry::Outcome::kSilent;
  } else if (socket.error().sys_errno == ECONNREFUSED) {
    seen.outcome = ConnectTry::Outcome::kRefused;
  } else {
    seen.why = socket.error().cause;
  }
  return seen;
}

// Connects to each address, and looks up the names of both ends.
void try_addresses(const std::vector<SocketAddress>& addresses, EndpointSeen& seen) {
  std::set<std::string> ends;
  for (const SocketAddress& one : addresses) {
    ends.insert(one.host());
    const std::string source = source_address_towards(one);
    if (!source.empty()) ends.insert(source);
  }
  std::vector<std::function<void()>> bodies;
  look_at_each(addresses, try_to_connect, seen.facts.tries, bodies);
  look_at_each(ends, look_up_address, seen.names, bodies);
  side_by_side(std::move(bodies));
}

}  // namespace

EndpointSeen look_at_endpoint(const EndpointRequest& request) {
  EndpointSeen seen{.facts = {.option = request.option, .address = request.address}};
  EndpointFacts& facts = seen.facts;
  NamedLookUp look_up = look_up_name(request.address);
  facts.look_up = std::move(look_up.seen);
  std::vector<SocketAddress>& addresses = look_up.addresses;
  if (addresses.size() > kMostTries) addresses.resize(kMostTries);
  const auto here = std::ranges::find_if(addresses, is_local_address);
  facts.is_here = here != addresses.end();
  if (request.address.port == 0 || addresses.empty()) return seen;
  try_addresses(addresses, seen);
  for (std::size_t i = 0; i < addresses.size() && !facts.service; ++i) {
    if (facts.tries[i].outcome == ConnectTry::Outcome::kConnected)
      facts.service = ask_service(request, addresses[i]);
  }
  const bool is_served = facts.service &&
                         facts.service->outcome != ServiceAnswer::Outcome::kOther &&
                         facts.service->outcome != ServiceAnswer::Outcome::kSilent;
  if (facts.is_here && !is_served) {
    const std::string host = listening_host({request.address.host, here->host()}, request.nodes);
    facts.listening = try_to_listen({host, request.address.port});
  }
  return seen;
}

}  // namespace ddprun
