#include "rendezvous/net/tcp_address.h"
#include "tests/support/host_has.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

TEST(SocketAddress, IsWrittenNumericallyAndMappedIpv4AsIpv4) {
  const std::vector<std::pair<HostPort, const char*>> cases{
      {{"10.0.0.1", 80}, "10.0.0.1:80"},
      {{"::1", 80}, "[::1]:80"},
      {{"::ffff:10.0.0.1", 80}, "10.0.0.1:80"},
  };
  for (const auto& [address, text] : cases) {
    const auto numeric = numeric_address(address);
    ASSERT_TRUE(numeric) << address.host;
    EXPECT_EQ(to_text(*numeric), text);
  }
  EXPECT_EQ(numeric_address({"localhost", 80}), std::nullopt);
  EXPECT_EQ(numeric_address({"", 80}), std::nullopt);
}

TEST(SocketAddress, TellsThisHostsOwnFromOthers) {
  EXPECT_TRUE(is_loopback_address(*numeric_address({"127.0.0.7", 0})));
  EXPECT_TRUE(is_loopback_address(*numeric_address({"::1", 0})));
  EXPECT_TRUE(is_local_address(*numeric_address({"127.0.0.1", 0})));
  EXPECT_FALSE(is_loopback_address(*numeric_address({"192.0.2.1", 0})));
  EXPECT_FALSE(is_local_address(*numeric_address({"192.0.2.1", 0})));
}

TEST(Resolve, FindsNumericAddressesAndLocalhost) {
  if (!testing_support::host_has_localhost()) GTEST_SKIP() << testing_support::kNoLocalhost;
  const auto numeric = resolve({"127.0.0.1", 80}, 0s);
  ASSERT_TRUE(numeric) << "a numeric address needs no time";
  EXPECT_EQ(to_text(numeric->at(0)), "127.0.0.1:80");
  const auto name = resolve({"localhost", 80}, 10s);
  ASSERT_TRUE(name) << name.error().message();
  EXPECT_EQ(name->at(0).port(), 80);
}

TEST(Resolve, NamesTheNameThatDoesNotExist) {
  const auto none = resolve({"no-such-host.invalid", 80}, 10s);
  ASSERT_FALSE(none);
  EXPECT_THAT(none.error().message(), HasSubstr("resolve no-such-host.invalid"));
}

}  // namespace
}  // namespace ddprun
