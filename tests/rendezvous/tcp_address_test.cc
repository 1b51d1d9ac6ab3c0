#include "rendezvous/tcp_address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct ParseCase {
  const char* text;
  const char* host;
  int port;
};

TEST(ParseHostPort, TakesWhatPeopleWrite) {
  const std::vector<ParseCase> cases{
      {"10.0.0.1:29500", "10.0.0.1", 29500},
      {"node7:0", "node7", 0},
      {"[::1]:65535", "::1", 65535},
      {"*:29500", "*", 29500},
      {":29500", "", 29500},
      {"[fe80::1%eth0]:1", "fe80::1%eth0", 1},
  };
  for (const ParseCase& one : cases) {
    const Result<HostPort> parsed = parse_host_port(one.text);
    ASSERT_TRUE(parsed) << parsed.error().message();
    EXPECT_EQ(parsed->host, one.host);
    EXPECT_EQ(parsed->port, one.port);
  }
}

TEST(ParseHostPort, SaysWhatIsWrong) {
  const std::vector<std::pair<const char*, const char*>> cases{
      {"", "HOST:PORT is expected"},
      {"node7", "HOST:PORT is expected"},
      {"node7:", "port  is no number from 0 to 65535"},
      {"node7:65536", "port 65536 is no number from 0 to 65535"},
      {"node7:-1", "port -1 is no number"},
      {"node7:12x", "port 12x is no number"},
      {"node7: 12", "port  12 is no number"},
      {"::1:29500", "an IPv6 address stands in brackets"},
  };
  for (const auto& [text, cause] : cases) {
    const Result<HostPort> parsed = parse_host_port(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(parsed.error().message(), HasSubstr(cause));
  }
}

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

TEST(Resolve, FindsNumericAddressesAndLocalhost) {
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
