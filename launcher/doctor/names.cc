#include "launcher/doctor/names.h"

#include <netdb.h>

#include <algorithm>
#include <array>
#include <optional>
#include <sstream>

#include "base/background_thread.h"
#include "base/deadline.h"
#include "base/poll_until.h"
#include "base/small_file.h"
#include "base/unique_fd.h"
#include "launcher/process/side_by_side.h"

namespace ddprun {
namespace {

constexpr Duration kServerPatience = std::chrono::milliseconds(2500);
constexpr Duration kAskAgain = std::chrono::seconds(1);  // UDP loses packets
constexpr std::size_t kMaxServers = 3;                   // as in the C library

bool has_ipv6_sockets() {
  return UniqueFd(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0)).valid();
}

// A DNS query for the address of localhost: header, name, type A, class IN.
constexpr std::array<unsigned char, 27> kQuestion{'d', 'r', 1,   0,   0,   1,   0,   0,   0,
                                                  0,   0,   0,   9,   'l', 'o', 'c', 'a', 'l',
                                                  'h', 'o', 's', 't', 0,   0,   1,   0,   1};

// Waits for the answer until then. nullopt: no answer yet.
std::optional<NameServer::Outcome> await_answer(int socket, TimePoint until, std::string& why) {
  pollfd entry{.fd = socket, .events = POLLIN, .revents = 0};
  while (poll_until({&entry, 1}, until)) {
    std::array<unsigned char, 512> answer{};
    const ssize_t size = recv(socket, answer.data(), answer.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (size < 0) {
      why = errno_text(errno);
      return NameServer::Outcome::kFailed;
    }
    if (size > 2 && std::equal(answer.begin(), answer.begin() + 2, kQuestion.begin()))
      return NameServer::Outcome::kAnswered;
  }
  return std::nullopt;
}

}  // namespace

NamedLookUp look_up_name(const HostPort& name) {
  const Deadline deadline(kLookUpPatience);
  Result<std::vector<SocketAddress>> found = resolve(name, deadline.allowed());
  NamedLookUp look_up{.seen = {.asked = name.host, .took = deadline.waited()}};
  if (!found) {
    const bool silent = found.error().kind == ErrorKind::kTimeout;
    look_up.seen.outcome = silent ? LookUp::Outcome::kSilent : LookUp::Outcome::kNotFound;
    look_up.seen.why = found.error().cause;
    return look_up;
  }
  look_up.seen.outcome = LookUp::Outcome::kFound;
  look_up.addresses = std::move(*found);
  for (const SocketAddress& one : look_up.addresses) look_up.seen.found.push_back(one.host());
  return look_up;
}

LookUp look_up_address(const std::string& address) {
  const bool is_ipv4 = address.find(':') == std::string::npos;
  LookUp seen{.asked = is_ipv4 && has_ipv6_sockets() ? "::ffff:" + address : address};
  const std::optional<SocketAddress> numeric = numeric_address({seen.asked, 0});
  if (!numeric) {
    seen.why = "not a numeric address";
    return seen;
  }
  const Deadline deadline(kLookUpPatience);
  const auto answer =
      result_within<std::string>(deadline.allowed(), "look-up", [numeric]() -> Result<std::string> {
        std::array<char, NI_MAXHOST> name{};
        const int status = getnameinfo(numeric->get(), numeric->size, name.data(), name.size(),
                                       nullptr, 0, NI_NAMEREQD);
        if (status == 0) return std::string(name.data());
        return Error{.kind = ErrorKind::kNotFound, .cause = gai_strerror(status)};
      });
  seen.took = deadline.waited();
  if (!answer) {
    seen.outcome = LookUp::Outcome::kSilent;
  } else if (!*answer) {
    seen.why = answer->error().cause;
  } else {
    seen.outcome = LookUp::Outcome::kFound;
    seen.found = {**answer};
  }
  return seen;
}

std::vector<std::string> name_servers_of(const std::string& resolv_conf) {
  std::vector<std::string> servers;
  std::istringstream lines(resolv_conf);
  for (std::string line; std::getline(lines, line) && servers.size() < kMaxServers;) {
    std::istringstream words(line);
    std::string keyword;
    std::string address;
    if (words >> keyword >> address && keyword == "nameserver") servers.push_back(address);
  }
  return servers;
}

NameServer ask_name_server(const std::string& address) {
  constexpr std::uint16_t kDnsPort = 53;
  NameServer server{.address = address, .outcome = NameServer::Outcome::kFailed};
  const std::optional<SocketAddress> numeric = numeric_address({address, kDnsPort});
  if (!numeric) {
    server.why = "not a numeric address";
    return server;
  }
  const Deadline deadline(kServerPatience);
  const UniqueFd udp(socket(numeric->family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!udp.valid() || connect(udp.get(), numeric->get(), numeric->size) != 0) {
    server.why = errno_text(errno);
    return server;
  }
  while (!deadline.passed()) {
    if (send(udp.get(), kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL) < 0) {
      server.why = errno_text(errno);
      server.took = deadline.waited();
      return server;
    }
    const TimePoint until = std::min(deadline.when(), BootClock::now() + kAskAgain);
    const auto outcome = await_answer(udp.get(), until, server.why);
    server.took = deadline.waited();
    if (!outcome) continue;
    server.outcome = *outcome;
    return server;
  }
  server.outcome = NameServer::Outcome::kSilent;
  return server;
}

NameFacts look_at_names() {
  NameFacts facts;
  const std::vector<std::string> servers = name_servers_of(text_of("/etc/resolv.conf"));
  std::vector<std::function<void()>> bodies;
  look_at_each(servers, ask_name_server, facts.servers, bodies);
  bodies.push_back([&] {
    NamedLookUp own = look_up_name({host_name(), 0});
    facts.own_is_here = std::ranges::any_of(own.addresses, is_local_address);
    facts.own_is_loopback = std::ranges::all_of(own.addresses, is_loopback_address);
    facts.own = std::move(own.seen);
  });
  side_by_side(std::move(bodies));
  return facts;
}

}  // namespace ddprun
