#include "launcher/ssh/core/agent_lines.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

constexpr TimePoint kNow{std::chrono::seconds(1000)};

TEST(AgentLines, ShowsWhatSeveralAgentsSayOnce) {
  AgentLines lines;
  const std::string text = "ddprun: error: rank 2 failed\nddprun: error: exit code 5\n";
  EXPECT_EQ(lines.shown(1, text, kNow, false), text);
  EXPECT_EQ(lines.shown(0, text + "ddprun: more\n", kNow, false), "ddprun: more\n");
  // The host that said it first may say it again.
  EXPECT_EQ(lines.shown(1, text, kNow, false), text);
}

TEST(AgentLines, ShowsWhatAnotherHostSaysLater) {
  AgentLines lines;
  const std::string text = "ddprun: warning: the disk is full\n";
  EXPECT_EQ(lines.shown(0, text, kNow, false), text);
  EXPECT_EQ(lines.shown(1, text, kNow + std::chrono::seconds(9), false), "");
  EXPECT_EQ(lines.shown(1, text, kNow + std::chrono::seconds(11), false), text);
}

TEST(AgentLines, ShowsAllLinesOfWorkers) {
  AgentLines lines;
  for (int host = 0; host < 2; ++host) {
    EXPECT_EQ(lines.shown(host, "a\n[rank 0] ddprun: b\n50 %\r", kNow, true),
              "a\n[rank 0] ddprun: b\n50 %\r");
  }
}

TEST(AgentLines, HoldsALineAboutWaitingWhileAgentsStart) {
  AgentLines lines;
  const std::string text = "ddprun: waiting: 1 of 2 nodes here\n";
  EXPECT_EQ(lines.shown(0, "ddprun: b\n" + text, kNow, true), "ddprun: b\n");
  EXPECT_EQ(lines.take_held(), text);
  EXPECT_FALSE(lines.holds());
  // A later line says that the wait is over.
  lines.shown(0, text, kNow, true);
  lines.shown(1, "a\n", kNow, true);
  EXPECT_EQ(lines.take_held(), "");
  EXPECT_EQ(lines.shown(0, text, kNow, false), text);
}

TEST(AgentLines, ForgetsOldLines) {
  AgentLines lines;
  for (int i = 0; i < 20000; ++i)
    lines.shown(0, "ddprun: " + std::to_string(i) + "\n", kNow, false);
  EXPECT_EQ(lines.shown(1, "ddprun: 1\n", kNow, false), "ddprun: 1\n");
}

}  // namespace
}  // namespace ddprun
