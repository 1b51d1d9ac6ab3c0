#include "rendezvous/auth/core/slurm_conf.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(SlurmConf, AuthInfoNamesMungesSocket) {
  EXPECT_EQ(munge_socket_of("ClusterName=c\nAuthInfo=socket=/run/m.socket\n"), "/run/m.socket");
  EXPECT_EQ(munge_socket_of("authinfo = ttl=60, Socket=/run/m.socket ,cred_expire=30  # no\r\n"),
            "/run/m.socket");
  EXPECT_EQ(munge_socket_of("AuthInfo=socket=/a\nAuthInfo=socket=/b"), "/b") << "the last line";
}

TEST(SlurmConf, OtherLinesNameNone) {
  for (const char* text : {"", "\n", "AuthInfo", "AuthInfo=", "AuthInfo=ttl=60",
                           "AuthInfo=socket=", "#AuthInfo=socket=/a", "AuthInfo=socket=relative",
                           "AuthAltParameters=socket=/a", "AuthInfo=,,,="}) {
    EXPECT_EQ(munge_socket_of(text), "") << text;
  }
}

TEST(SlurmConf, KillWaitIsThirtySecondsUnlessItIsSet) {
  using std::chrono::seconds;
  EXPECT_EQ(kill_wait_of(""), seconds(30));
  EXPECT_EQ(kill_wait_of("ClusterName=c\n#KillWait=5\nUnkillableStepTimeout=7\n"), seconds(30));
  EXPECT_EQ(kill_wait_of("killwait = 60 # a minute\n"), seconds(60));
  EXPECT_EQ(kill_wait_of("KillWait=5\nKillWait=0\n"), seconds(0));
  EXPECT_EQ(kill_wait_of("include /etc/slurm/more.conf\n"), std::nullopt);
  EXPECT_EQ(kill_wait_of("KillWait=9\n Include more.conf\n"), seconds(9));
  EXPECT_EQ(kill_wait_of("#Include more.conf\nIncludes=1\n"), seconds(30));
  for (const char* bad : {"KillWait=", "KillWait=-1", "KillWait=x", "KillWait=1000000"}) {
    EXPECT_EQ(kill_wait_of(bad), seconds(30)) << bad;
  }
}

}  // namespace
}  // namespace ddprun
