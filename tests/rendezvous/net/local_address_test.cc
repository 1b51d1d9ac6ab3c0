#include "rendezvous/net/local_address.h"
#include "tests/support/host_has.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;

InterfaceAddress at(const char* interface, const char* address) {
  return {.interface = interface, .address = *numeric_address({address, 0})};
}

const std::vector<InterfaceAddress> kHost{
    at("lo", "127.0.0.1"),      at("eth0", "192.168.7.3"), at("ib0", "fe80::1"),
    at("ib0", "fd00:7::3"),     at("ib1", "fe80::2"),      at("eth1", "fd00:8::3"),
    at("eth1", "10.1.200.200"),
};

std::string found(const std::string& wanted) {
  const auto address = find_local_address(wanted, kHost, std::chrono::seconds(20));
  return address ? *address : "error: " + address.error().message();
}

TEST(LocalAddress, ANumericOneIsTakenAsItIs) {
  EXPECT_EQ(found("10.0.0.7"), "10.0.0.7");
  EXPECT_EQ(found("fd00::7"), "fd00::7");
}

TEST(LocalAddress, ANetworkMeansTheAddressInIt) {
  EXPECT_EQ(found("10.1.0.0/16"), "10.1.200.200");
  EXPECT_EQ(found("10.1.200.0/24"), "10.1.200.200");
  EXPECT_EQ(found("192.168.7.3/32"), "192.168.7.3");
  EXPECT_EQ(found("0.0.0.0/0"), "127.0.0.1");
  EXPECT_EQ(found("fd00:7::/32"), "fd00:7::3");
  EXPECT_EQ(found("fd00:8::/32"), "fd00:8::3");
}

TEST(LocalAddress, AnInterfaceMeansItsIpv4AddressOrOneBeyondItsLink) {
  EXPECT_EQ(found("eth0"), "192.168.7.3");
  EXPECT_EQ(found("eth1"), "10.1.200.200");
  EXPECT_EQ(found("ib0"), "fd00:7::3");
}

TEST(LocalAddress, ANameMeansWhatItLeadsTo) {
  if (!testing_support::host_has_localhost()) GTEST_SKIP() << testing_support::kNoLocalhost;
  EXPECT_THAT(found("localhost"), testing::AnyOf("127.0.0.1", "::1"));
}

TEST(LocalAddress, SaysWhatThereIsInstead) {
  EXPECT_THAT(found("10.2.0.0/16"),
              AllOf(HasSubstr("no address of this host is in 10.2.0.0/16"),
                    HasSubstr("192.168.7.3 (eth0)"), HasSubstr("10.1.200.200 (eth1)")));
  EXPECT_THAT(found("10.2.0.0/33"), HasSubstr("invalid value '10.2.0.0/33'"));
  EXPECT_THAT(found("/dev/null"), HasSubstr("invalid value '/dev/null'"));
  EXPECT_THAT(found("ib1"), HasSubstr("an interface of this host (eth0, eth1, ib0, ib1, lo)"))
      << "a link-local address is of no use";
  EXPECT_THAT(found("eth9.invalid"), HasSubstr("'eth9.invalid' is not an address, an interface"));
}

TEST(LocalAddress, WhereNobodySaysItIsOneOfThisHost) {
  const std::string likely = likely_local_address(interface_addresses());
  const auto address = numeric_address({likely, 0});
  ASSERT_TRUE(address) << likely;
  EXPECT_TRUE(is_local_address(*address)) << likely;
}

TEST(InterfaceAddresses, HoldLoopback) {
  EXPECT_EQ(find_local_address("lo", interface_addresses(), {}).value(), "127.0.0.1");
  EXPECT_EQ(find_local_address("127.0.0.0/8", interface_addresses(), {}).value(), "127.0.0.1");
}

}  // namespace
}  // namespace ddprun
