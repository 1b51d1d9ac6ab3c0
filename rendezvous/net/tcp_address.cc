#include "rendezvous/net/tcp_address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "base/background_thread.h"
#include "base/deadline.h"

namespace ddprun {
namespace {

struct AddrinfoDeleter {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};

using Addresses = std::vector<SocketAddress>;

constexpr const char* kLookUpThread = "look-up";

int look_up(const HostPort& address, int flags, std::vector<SocketAddress>& found) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* raw = nullptr;
  const int status =
      getaddrinfo(address.host.c_str(), std::to_string(address.port).c_str(), &hints, &raw);
  const std::unique_ptr<addrinfo, AddrinfoDeleter> list(raw);
  if (status != 0) return status;
  for (const addrinfo* entry = list.get(); entry; entry = entry->ai_next) {
    SocketAddress one;
    one.size = entry->ai_addrlen;
    std::memcpy(&one.storage, entry->ai_addr, entry->ai_addrlen);
    found.push_back(one);
  }
  return 0;
}

// Resolves a name. Its errors do not say what was looked up.
Result<Addresses> look_up_name(const HostPort& address) {
  Addresses found;
  const int status = look_up(address, AI_ADDRCONFIG, found);
  const int sys_errno = errno;
  if (status == 0) return found;
  return Error{.kind = ErrorKind::kNotFound,
               .cause = status == EAI_SYSTEM ? system_error("", sys_errno).cause
                                             : std::string(gai_strerror(status))};
}

using NameCall = int (*)(int, sockaddr*, socklen_t*);

SocketAddress address_of(int socket, NameCall call) {
  SocketAddress address;
  address.size = sizeof address.storage;
  if (call(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.size) != 0) return {};
  return address;
}

}  // namespace

std::uint16_t SocketAddress::port() const {
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  if (family() == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  return 0;
}

std::string SocketAddress::host() const {
  if (size == 0) return "unknown";
  char text[NI_MAXHOST];
  if (getnameinfo(get(), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0)
    return "unknown";
  constexpr std::string_view kMapped = "::ffff:";
  const std::string_view host(text);
  const bool is_mapped = host.starts_with(kMapped) && host.find('.') != std::string_view::npos;
  return std::string(is_mapped ? host.substr(kMapped.size()) : host);
}

std::string to_text(const SocketAddress& address) {
  return to_text(HostPort{.host = address.host(), .port = address.port()});
}

SocketAddress local_address_of(int socket) { return address_of(socket, getsockname); }
SocketAddress peer_address_of(int socket) { return address_of(socket, getpeername); }

bool is_loopback_address(const SocketAddress& address) { return is_loopback_host(address.host()); }

std::string host_name() {
  char name[256] = "localhost";
  gethostname(name, sizeof name - 1);
  return name;
}

std::vector<InterfaceAddress> interface_addresses() {
  std::vector<InterfaceAddress> found;
  ifaddrs* raw = nullptr;
  if (getifaddrs(&raw) != 0) return found;
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> list(raw, &freeifaddrs);
  for (const ifaddrs* entry = list.get(); entry; entry = entry->ifa_next) {
    if (!entry->ifa_addr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    InterfaceAddress one{.interface = entry->ifa_name};
    one.address.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    std::memcpy(&one.address.storage, entry->ifa_addr, one.address.size);
    found.push_back(std::move(one));
  }
  return found;
}

bool is_local_address(const SocketAddress& address) {
  if (is_loopback_address(address)) return true;
  const std::string host = address.host();
  const std::vector<InterfaceAddress> own = interface_addresses();
  return std::any_of(own.begin(), own.end(),
                     [&](const InterfaceAddress& one) { return one.address.host() == host; });
}

std::optional<SocketAddress> numeric_address(const HostPort& address) {
  std::vector<SocketAddress> found;
  if (address.host.empty() || look_up(address, AI_NUMERICHOST, found) != 0) return std::nullopt;
  return found.front();
}

Result<Addresses> resolve(const HostPort& address, Duration allowed) {
  if (const auto numeric = numeric_address(address)) return Addresses{*numeric};
  const std::string doing = "resolve " + address.host;
  const Deadline deadline(allowed);
  const auto answer =
      result_within<Addresses>(allowed, kLookUpThread, [address] { return look_up_name(address); });
  if (!answer) {
    return timeout_error(doing, "the name service did not answer", deadline.waited(),
                         deadline.allowed());
  }
  if (!*answer) return Error(answer->error()).within(doing);
  return *answer;
}

void resolve_in_background(const HostPort& address, ResolveHandler then) {
  if (const auto numeric = numeric_address(address)) return then(Addresses{*numeric});
  const std::string doing = "resolve " + address.host;
  const Result<void> started = start_detached_thread(kLookUpThread, [=] {
    Result<Addresses> found = look_up_name(address);
    then(found ? std::move(found) : std::move(found).error().within(doing));
  });
  if (!started) then(Error(started.error()).within(doing));
}

}  // namespace ddprun
