#include "launcher/ssh/core/agent_lines.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(AgentLines, ShowsWhatSeveralAgentsSayOnce) {
  AgentLines lines;
  const std::string text = "ddprun: error: rank 2 failed\nddprun: error: exit code 5\n";
  EXPECT_EQ(lines.shown(1, text, false), text);
  EXPECT_EQ(lines.shown(0, text + "ddprun: more\n", false), "ddprun: more\n");
  // The host that said it first may say it again.
  EXPECT_EQ(lines.shown(1, text, false), text);
}

TEST(AgentLines, ShowsAllLinesOfWorkers) {
  AgentLines lines;
  for (int host = 0; host < 2; ++host) {
    EXPECT_EQ(lines.shown(host, "a\n[rank 0] ddprun: b\n50 %\r", true),
              "a\n[rank 0] ddprun: b\n50 %\r");
  }
}

TEST(AgentLines, DropsLinesAboutWaitingOnlyWhileAgentsStart) {
  AgentLines lines;
  const std::string text = "ddprun: waiting: 1 of 2 nodes here\n";
  EXPECT_EQ(lines.shown(0, text + "ddprun: b\n", true), "ddprun: b\n");
  EXPECT_EQ(lines.shown(0, text, false), text);
}

TEST(AgentLines, ForgetsOldLines) {
  AgentLines lines;
  for (int i = 0; i < 20000; ++i) lines.shown(0, "ddprun: " + std::to_string(i) + "\n", false);
  EXPECT_EQ(lines.shown(1, "ddprun: 1\n", false), "ddprun: 1\n");
}

}  // namespace
}  // namespace ddprun
