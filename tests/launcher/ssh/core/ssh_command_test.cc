#include "launcher/ssh/core/ssh_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Contains;
using testing::ElementsAre;

TEST(SshCommand, PutsTheUsersOptionsFirst) {
  const SshOptions options{.words = {"ssh", "-p", "2222"},
                           .program = "/opt/it's/ddprun",
                           .connect_timeout = seconds(10),
                           .lease = seconds(5)};
  EXPECT_THAT(
      ssh_command(options, "me@a"),
      ElementsAre("ssh", "-p", "2222", "-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o",
                  "ServerAliveInterval=3", "-o", "ServerAliveCountMax=3", "-o", "ControlMaster=no",
                  "-o", "ControlPersist=no", "-o", "ClearAllForwardings=yes", "-o",
                  "RemoteCommand=none", "-o", "PermitLocalCommand=no", "--", "me@a",
                  R"(test -x '/opt/it'\''s/ddprun' && exec '/opt/it'\''s/ddprun' ssh-node; )"
                  "exec ddprun ssh-node"));
}

TEST(SshCommand, GivesSshWholeSeconds) {
  const SshOptions options{.words = {"ssh"},
                           .program = "ddprun",
                           .connect_timeout = milliseconds(300),
                           .lease = milliseconds(100)};
  EXPECT_THAT(ssh_command(options, "a"), Contains("ConnectTimeout=1"));
  EXPECT_THAT(ssh_command(options, "a"), Contains("ServerAliveInterval=1"));
}

}  // namespace
}  // namespace ddprun
