// Tests networks and sets of addresses, IPv4 and IPv6.
#include "rendezvous/net/address_set.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

SocketAddress address(const std::string& text) { return numeric_address({text, 1}).value(); }

bool is_in(const std::string& one, const std::string& network) {
  const auto parsed = Network::parse(network);
  EXPECT_TRUE(parsed) << network;
  return parsed && parsed->contains(address(one));
}

TEST(Network, TakesTheAddressesThatShareItsPrefix) {
  EXPECT_TRUE(is_in("10.1.2.3", "10.1.0.0/16"));
  EXPECT_FALSE(is_in("10.2.2.3", "10.1.0.0/16"));
  EXPECT_TRUE(is_in("10.1.2.3", "10.1.99.99/16")) << "what is behind the prefix does not count";
  EXPECT_TRUE(is_in("10.1.2.129", "10.1.2.128/25"));
  EXPECT_FALSE(is_in("10.1.2.127", "10.1.2.128/25"));
  EXPECT_TRUE(is_in("fd00:1::9", "fd00:1::/32"));
  EXPECT_FALSE(is_in("fd00:2::9", "fd00:1::/32"));
  EXPECT_TRUE(is_in("fd80::1", "fd80::/9"));
  EXPECT_FALSE(is_in("fd00::1", "fd80::/9"));
}

TEST(Network, OfOneAddressHasThatOne) {
  EXPECT_TRUE(is_in("10.0.0.7", "10.0.0.7"));
  EXPECT_FALSE(is_in("10.0.0.8", "10.0.0.7"));
  EXPECT_TRUE(is_in("fd00::7", "fd00::7/128"));
}

TEST(Network, KnowsAnIpv4AddressInsideAnIpv6One) {
  EXPECT_TRUE(is_in("::ffff:10.1.2.3", "10.1.0.0/16"));
  EXPECT_FALSE(is_in("::ffff:10.2.2.3", "10.1.0.0/16"));
  EXPECT_FALSE(is_in("fd00::1", "0.0.0.0/0"));
  EXPECT_TRUE(is_in("10.1.2.3", "0.0.0.0/0"));
}

TEST(Network, RefusesWhatIsNone) {
  for (const char* text : {"", "/", "node0", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/",
                           "10.0.0.0/8x", "fd00::/129", "10.0.0/8", "10.0.0.0/8/8"}) {
    const auto parsed = Network::parse(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(parsed.error().cause, testing::HasSubstr("expected an address or a network"));
  }
}

TEST(AddressSet, HasItsAddressesAndThoseOfItsNetworks) {
  AddressSet set;
  EXPECT_FALSE(set.contains(address("10.0.0.1")));
  set.add("10.0.0.1");
  set.add("fd00:0:0::1");
  set.add("a name");
  set.add(Network::parse("192.168.0.0/24").value());
  for (const char* text : {"10.0.0.1", "::ffff:10.0.0.1", "fd00::1", "192.168.0.200"}) {
    EXPECT_TRUE(set.contains(address(text))) << text;
  }
  EXPECT_FALSE(set.contains(address("10.0.0.2")));
  EXPECT_FALSE(set.contains(SocketAddress()));
}

TEST(AddressSet, IsReadFromAList) {
  const auto set = AddressSet::parse("10.0.0.0/8,fd00::1");
  ASSERT_TRUE(set);
  EXPECT_TRUE(set->contains(address("10.1.2.3")));
  EXPECT_TRUE(set->contains(address("fd00::1")));
  EXPECT_FALSE(set->contains(address("fd00::2")));
  for (const char* bad : {"", ",", "10.0.0.1,", "10.0.0.1,,::1", "10.0.0.1 ::1"}) {
    EXPECT_FALSE(AddressSet::parse(bad)) << bad;
  }
}

}  // namespace
}  // namespace ddprun
