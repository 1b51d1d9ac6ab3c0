#include "launcher/ssh/core/host_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

HostEntry host(const char* name, std::optional<int> slots = std::nullopt) { return {name, slots}; }

TEST(ParseHosts, RefusesWhatIsNoHost) {
  for (const char* bad : {"",
                          ",",
                          "a,",
                          "a,,b",
                          ":4",
                          "a:",
                          "a:0",
                          "a:-1",
                          "a:x",
                          "a:4:4",
                          "fe80::1",
                          "[fe80::1",
                          "[fe80::1]4",
                          "[]",
                          "me@",
                          "@a",
                          "-oProxyCommand=x",
                          "me@-x",
                          "a b",
                          "a/b",
                          "a;b",
                          "a\nb",
                          "a\\nb",
                          "node*",
                          "node?",
                          "a:99999999999"}) {
    EXPECT_FALSE(parse_hosts(bad)) << bad;
  }
  EXPECT_THAT(parse_hosts("a:0").error().message(), HasSubstr("a: invalid value '0' (slots"));
  EXPECT_THAT(parse_hosts("fe80::1").error().message(), HasSubstr("brackets"));
}

TEST(ParseHosts, RefusesAHostThatIsThereTwice) {
  for (const char* bad : {"a,a", "a:1,b,a:2", "me@a,you@a", "Node0,node0", "[::1],[::1]:2"}) {
    ASSERT_FALSE(parse_hosts(bad)) << bad;
    EXPECT_THAT(parse_hosts(bad).error().cause, HasSubstr("twice")) << bad;
  }
}

TEST(ParseHosts, ReadsNamesUsersAddressesAndSlots) {
  EXPECT_THAT(*parse_hosts("a"), ElementsAre(host("a")));
  EXPECT_THAT(*parse_hosts("a:4, b:8,c"), ElementsAre(host("a", 4), host("b", 8), host("c")));
  EXPECT_THAT(*parse_hosts("me@a:4,10.0.0.1:2"), ElementsAre(host("me@a", 4), host("10.0.0.1", 2)));
  EXPECT_THAT(*parse_hosts("CORP\\me@a"), ElementsAre(host("CORP\\me@a")));
  EXPECT_THAT(*parse_hosts("[fe80::1]:4,[fe80::2%eth0],me@[::1]"),
              ElementsAre(host("fe80::1", 4), host("fe80::2%eth0"), host("me@::1")));
}

TEST(ParseHostfile, NamesTheLineThatIsWrong) {
  for (const char* bad :
       {"a\nb slots=0", "a\nb slots=x", "a\nb slots", "a\nb slots=", "a\nb slots =", "a\nb = 4",
        "a\nb 4", "a\nb slot=4", "a\nb slots=1 slots=2", "a\nb max_slots=x", "a\na", "a\n-x",
        "a\nslots=4"}) {
    ASSERT_FALSE(parse_hostfile(bad)) << bad;
    EXPECT_THAT(parse_hostfile(bad).error().message(), HasSubstr("line 2: ")) << bad;
  }
  EXPECT_THAT(parse_hostfile("# a\n\n").error().cause, HasSubstr("no hosts"));
  EXPECT_THAT(parse_hostfile("a\nb\na slots=2").error().message(),
              HasSubstr("line 3: host 'a' is named twice, first in line 1"));
}

TEST(ParseHostfile, ReadsTheFormsOfDeepSpeedAndOpenMpi) {
  EXPECT_THAT(*parse_hostfile("worker-1 slots=4\nworker-2 slots=8\n"),
              ElementsAre(host("worker-1", 4), host("worker-2", 8)));
  EXPECT_THAT(*parse_hostfile("# a cluster\n\n aa slots=4 max_slots=8 # the first\r\n"
                              "bb\tmax-slots=2   slots=2\nroot@cc\n[fe80::1] slots=3"),
              ElementsAre(host("aa", 4), host("bb", 2), host("root@cc"), host("fe80::1", 3)));
  EXPECT_THAT(*parse_hostfile("a:4"), ElementsAre(host("a", 4)));
  EXPECT_THAT(*parse_hostfile("\xEF\xBB\xBF"
                              "a slots=4\r\nb\r\n"),
              ElementsAre(host("a", 4), host("b")));
  EXPECT_THAT(*parse_hostfile("// two nodes\na slots = 4 max-slots= 8 // the first\nb\tslots =2"),
              ElementsAre(host("a", 4), host("b", 2)));
}

TEST(WithoutUser, KeepsTheHost) {
  EXPECT_EQ(without_user("me@a"), "a");
  EXPECT_EQ(without_user("a"), "a");
  EXPECT_EQ(without_user("me@dom@a"), "a");
}

}  // namespace
}  // namespace ddprun
