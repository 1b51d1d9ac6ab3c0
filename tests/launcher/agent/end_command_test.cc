#include "launcher/agent/end_command.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>

#include <csignal>

#include "base/process_tree.h"
#include "base/unique_fd.h"
#include "launcher/process/signal_source.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::read_file;

class EndCommandTest : public testing::Test {
 protected:
  void SetUp() override { become_subreaper(); }
  void TearDown() override { prctl(PR_SET_CHILD_SUBREAPER, 0); }

  std::string run(const std::string& text, Duration allowed = kEndCommandTime) const {
    return run_end_command(
        {.text = text, .report = "{\"state\": 1}\n", .headline = "it's \"over\""}, -1, allowed);
  }
  const testing_support::TemporaryDirectory directory_;
  const std::string file_ = directory_ / "file";
};

TEST_F(EndCommandTest, GetsTheReportAndTheHeadline) {
  EXPECT_EQ(run("cat > " + file_ + "; echo \"$DDPRUN_HEADLINE\" >> " + file_), "");
  EXPECT_EQ(read_file(file_), "{\"state\": 1}\nit's \"over\"\n");
}

TEST_F(EndCommandTest, ALargeReportNeedsNoReader) {
  const std::string report(1 << 20, 'x');
  EXPECT_EQ(run_end_command({.text = "true", .report = report, .headline = ""}, -1), "");
}

TEST_F(EndCommandTest, SaysThatItFailed) { EXPECT_EQ(run("exit 7"), "it ended with exit code 7"); }

TEST_F(EndCommandTest, IsKilledWhenItsTimeIsOverAndLeavesNothing) {
  EXPECT_EQ(run("trap '' TERM; sleep 1000 & sleep 1000; true", std::chrono::milliseconds(50)),
            "killed, because it took longer than 50 ms");
  EXPECT_FALSE(has_children());
  EXPECT_EQ(run("sleep 1000 &"), "") << "what it leaves in the background is ended";
  EXPECT_FALSE(has_children());
}

TEST_F(EndCommandTest, ASignalEndsIt) {
  sigset_t before;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  const auto signals = open_signal_source({SIGTERM, SIGCHLD});
  ASSERT_TRUE(signals);
  EXPECT_EQ(run_end_command({.text = "kill $PPID; sleep 1000", .report = "", .headline = ""},
                            signals->get()),
            "killed, because ddprun received SIGTERM");
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace ddprun
