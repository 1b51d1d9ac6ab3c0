#include "rendezvous/net/listen.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>
#include <vector>

#include "tests/support/host_has.h"
#include "tests/support/raw_tcp_client.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::host_has_ipv6;
using testing_support::RawTcpClient;

TEST(ListenTcp, TakesAFreePortAndSaysWhich) {
  const Result<Listener> listener = listen_tcp({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listener) << listener.error().message();
  EXPECT_EQ(listener->address.host, "127.0.0.1");
  EXPECT_NE(listener->address.port, 0);
  RawTcpClient client(listener->address.port);
}

TEST(ListenTcp, WildcardsTakeBothFamilies) {
  for (const char* host : {"", "*"}) {
    const Result<Listener> listener = listen_tcp({.host = host, .port = 0});
    ASSERT_TRUE(listener) << listener.error().message();
    RawTcpClient over_ipv4(listener->address.port);
    if (!host_has_ipv6()) continue;
    EXPECT_EQ(listener->address.host, "::");
    RawTcpClient over_ipv6(listener->address.port, "::1");
  }
}

TEST(ListenTcp, TakesAnIpv6Address) {
  if (!host_has_ipv6()) GTEST_SKIP() << "this machine has no IPv6";
  const Result<Listener> listener = listen_tcp({.host = "::1", .port = 0});
  ASSERT_TRUE(listener) << listener.error().message();
  RawTcpClient client(listener->address.port, "::1");
}

TEST(ListenTcp, NamesThePortThatIsTaken) {
  const Result<Listener> first = listen_tcp({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(first);
  const Result<Listener> second = listen_tcp(first->address);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().sys_errno, EADDRINUSE);
  EXPECT_EQ(second.error().message(),
            "listen on " + to_text(first->address) + ": Address already in use");
}

TEST(ListenTcp, LetsWhoKnowsAReservedPortListenThere) {
  for (const char* host : {"127.0.0.1", "*"}) {
    const Result<Listener> kept = reserve_tcp(host, PortRange{});
    ASSERT_TRUE(kept) << kept.error().message();
    const HostPort address{"*", kept->address.port};
    const Result<Listener> listener = listen_tcp(address);
    ASSERT_TRUE(listener) << listener.error().message();
    RawTcpClient client(listener->address.port);
    EXPECT_FALSE(listen_tcp(address)) << "two servers on one port";
  }
}

TEST(ListenTcp, GivesAReservedPortToNobodyElse) {
  const Result<Listener> kept = reserve_tcp("*", PortRange{});
  ASSERT_TRUE(kept);
  const std::uint16_t first = std::min<std::uint16_t>(kept->address.port, 65526);
  const PortRange around{first, static_cast<std::uint16_t>(first + 9)};
  for (int i = 0; i < 20; ++i) {
    const Result<Listener> other = reserve_tcp("*", around);
    ASSERT_TRUE(other) << other.error().message();
    EXPECT_NE(other->address.port, kept->address.port);
  }
}

TEST(ListenTcp, TakesAPortAgainWhoseLastConnectionsHaveJustEnded) {
  Result<Listener> first = listen_tcp({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(first);
  RawTcpClient client(first->address.port);
  UniqueFd accepted(accept(first->socket.get(), nullptr, nullptr));
  ASSERT_TRUE(accepted.valid());
  accepted.reset();  // the side that closes first keeps the port busy for a minute
  EXPECT_TRUE(client.is_closed());
  first->socket.reset();
  const Result<Listener> second = listen_tcp(first->address);
  EXPECT_TRUE(second) << second.error().message();
}

TEST(ListenTcp, RefusesNamesAndForeignAddresses) {
  const Result<Listener> name = listen_tcp({.host = "localhost", .port = 0});
  ASSERT_FALSE(name);
  EXPECT_EQ(name.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_THAT(name.error().message(), HasSubstr("'localhost' is not a numeric address"));
  const Result<Listener> foreign = listen_tcp({.host = "192.0.2.1", .port = 0});
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().sys_errno, EADDRNOTAVAIL);
}

TEST(ListenTcp, TheSocketDoesNotBlockAndIsClosedOnExec) {
  const Result<Listener> listener = listen_tcp({.host = "127.0.0.1", .port = 0});
  ASSERT_TRUE(listener);
  EXPECT_TRUE(fcntl(listener->socket.get(), F_GETFD) & FD_CLOEXEC);
  EXPECT_TRUE(fcntl(listener->socket.get(), F_GETFL) & O_NONBLOCK);
}

TEST(ListenTcp, FindsTheFreePortsOfARangeAndSaysWhenThereIsNoneLeft) {
  // Finds three consecutive ports that were free a moment ago.
  std::vector<Listener> listeners;
  const auto take_all = [&](PortRange ports) {
    listeners.clear();
    for (int i = 0; i < 3; ++i) {
      Result<Listener> listener = listen_tcp("127.0.0.1", ports);
      if (!listener) return false;
      listeners.push_back(std::move(*listener));
    }
    return true;
  };
  PortRange ports{20000, 20002};
  while (!take_all(ports)) {
    ports = {static_cast<std::uint16_t>(ports.first + 3),
             static_cast<std::uint16_t>(ports.last + 3)};
    ASSERT_LT(ports.last, 32000);
  }
  std::set<int> taken;
  for (const Listener& listener : listeners) taken.insert(listener.address.port);
  EXPECT_EQ(taken, (std::set<int>{ports.first, ports.first + 1, ports.last}));
  const Result<Listener> none = listen_tcp("127.0.0.1", ports);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().message(),
            "listen on 127.0.0.1: every port of " + to_text(ports) + " is taken");
  listeners.erase(listeners.begin() + 1);
  EXPECT_TRUE(listen_tcp("127.0.0.1", ports));
}

TEST(ListenTcp, ARangeDoesNotHideAnotherError) {
  const Result<Listener> foreign = listen_tcp("192.0.2.1", PortRange{20000, 30000});
  ASSERT_FALSE(foreign);
  EXPECT_EQ(foreign.error().sys_errno, EADDRNOTAVAIL);
}

}  // namespace
}  // namespace ddprun
