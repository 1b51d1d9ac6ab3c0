#include "base/host_port.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

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
      {"", "expected HOST:PORT"},
      {"node7", "expected HOST:PORT"},
      {"node7:", "invalid value 'node7:' (the port must be a number from 0 to 65535)"},
      {"node7:65536", "(the port must be a number from 0 to 65535)"},
      {"node7:-1", "the port must be"},
      {"node7:12x", "the port must be"},
      {"node7: 12", "the port must be"},
      {"[::1", "the ] is missing"},
      {"[::1]29500", "expected [ADDRESS]:PORT"},
      {"http://node7:29400", "expected HOST:PORT, or [ADDRESS]:PORT for an IPv6 address"},
      {"node7:29400:1", "expected HOST:PORT"},
      {"me@node7:29400", "'me@node7' is not a host name or address"},
      {" node7:29400", "' node7' is not a host name"},
      {"node7/24:29400", "'node7/24' is not a host name"},
      {"::1:29500", "[ADDRESS]:PORT for an IPv6 address"},
  };
  for (const auto& [text, cause] : cases) {
    const Result<HostPort> parsed = parse_host_port(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(parsed.error().message(), HasSubstr(cause));
  }
}

TEST(ParseHostPort, TakesADefaultForAPortThatIsLeftOut) {
  EXPECT_EQ(*parse_host_port("node7", 29400), (HostPort{"node7", 29400}));
  EXPECT_EQ(*parse_host_port("[::1]", 29400), (HostPort{"::1", 29400}));
  EXPECT_EQ(*parse_host_port("fe80::1", 29400), (HostPort{"fe80::1", 29400}));
  EXPECT_EQ(*parse_host_port("node7:1", 29400), (HostPort{"node7", 1}));
  EXPECT_FALSE(parse_host_port("node7:", 29400)) << "a port was begun";
  EXPECT_FALSE(parse_host_port("node7:1:2", 29400)) << "no IPv6 address";
}

TEST(HostPort, IsWrittenAsItIsRead) {
  for (const char* text : {"10.0.0.1:29500", "[::1]:29500", "node7:0"})
    EXPECT_EQ(to_text(*parse_host_port(text)), text);
}

TEST(HostPort, KnowsThisMachinesOwnWords) {
  for (const char* host : {"localhost", "127.0.0.1", "127.3.2.1", "::1"})
    EXPECT_TRUE(is_loopback_host(host)) << host;
  for (const char* host : {"", "node0", "10.0.0.1", "::", "128.0.0.1"})
    EXPECT_FALSE(is_loopback_host(host)) << host;
}

TEST(ParsePortRange, TakesARangeAndOnePort) {
  const auto range = parse_port_range("29500-29599");
  ASSERT_TRUE(range) << range.error().message();
  EXPECT_EQ(*range, (PortRange{29500, 29599}));
  EXPECT_EQ(to_text(*range), "29500-29599");
  EXPECT_EQ(parse_port_range("65535").value(), (PortRange{65535, 65535}));
}

TEST(ParsePortRange, SaysWhatIsWrong) {
  for (const char* text : {"", "-", "0-10", "1-", "-5", "1-65536", "a-b", "1-2-3", "1,2"}) {
    const auto range = parse_port_range(text);
    ASSERT_FALSE(range) << text;
    EXPECT_THAT(range.error().message(), HasSubstr("FIRST-LAST")) << text;
  }
  EXPECT_THAT(parse_port_range("20-10").error().message(),
              HasSubstr("invalid value '20-10' (the first port is larger than the last one)"));
}

}  // namespace
}  // namespace ddprun
