// Tests ddprun on a terminal that people look at: a pseudo terminal, and a model of its
// screen.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/host_has.h"
#include "tests/support/screen_model.h"

namespace ddprun::testing_support {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

class LauncherTerminalTest : public LauncherTest {
 protected:
  static constexpr int kColumns = 100;
  static constexpr int kRows = 10;

  void SetUp() override {
    LauncherTest::SetUp();
    if (!host_has_pseudo_terminals()) GTEST_SKIP() << kNoPseudoTerminals;
  }
  void start_job(const Arguments& arguments, Variables more = {{"TERM", "xterm"}}) {
    more.emplace_back("NO_COLOR", "");
    ChildProcess::Options options = environment(std::move(more));
    options.terminal = {kColumns, kRows};
    job_ = std::make_unique<ChildProcess>(joined({program("ddprun")}, arguments), options);
  }
  // Returns what the terminal has shown until now.
  std::vector<std::string> lines() const { return model().lines(); }
  bool shows(const testing::Matcher<const std::vector<std::string>&>& expected) const {
    return eventually([&] { return testing::Matches(expected)(lines()); });
  }
  ScreenModel model() const {
    ScreenModel model(kColumns, kRows);
    model.feed(job_->out());
    return model;
  }

  std::unique_ptr<ChildProcess> job_;
};

TEST_F(LauncherTerminalTest, LinesScrollByAboveAStatusLineThatGoesAtTheEnd) {
  start_job({"--nproc-per-node=2", "--max-restarts=3", "--rdzv-id=run7", "sh", "-c",
             until_go_after("[ $RANK = 0 ] && seq 1 12; :")});
  EXPECT_TRUE(eventually([&] {
    const std::vector<std::string> seen = lines();
    return seen.size() == 13 &&
           seen.back().starts_with(
               "ddprun run7 | generation 0 | 2 of 2 ranks alive | 3 restarts left | 0:00:");
  })) << testing::PrintToString(lines());
  EXPECT_EQ(lines()[11], "[rank 0] 12");
  EXPECT_TRUE(model().was_coloured());
  let_go();
  ASSERT_EQ(job_->wait(), 0);
  EXPECT_TRUE(eventually([&] { return lines().size() == 12; })) << testing::PrintToString(lines());
}

TEST_F(LauncherTerminalTest, TheStatusFollowsTimeAndRestarts) {
  start_job({"--max-restarts=1", "sh", "-c",
             "[ $DDPRUN_GENERATION = 1 ] || exit 1; " + std::string(kUntilGo)});
  EXPECT_TRUE(eventually([&] {
    return !lines().empty() &&
           lines().back().find("generation 1 | 1 of 1 ranks alive | 0 restarts left | 0:00:0") !=
               std::string::npos;
  })) << testing::PrintToString(lines());
  const std::string then = lines().back();
  EXPECT_TRUE(eventually([&] { return lines().back() != then; })) << "time goes by";
  let_go();
  ASSERT_EQ(job_->wait(), 0);
}

// Lines scroll above the status area, which is drawn again with them.
TEST_F(LauncherTerminalTest, TheStatusIsRightAsSoonAsAWorkerSaysAnything) {
  start_job({"--nproc-per-node=2", "sh", "-c", until_go_after("echo here")});
  const auto after_the_line = [&] {
    const std::string out = job_->out();
    return out.substr(std::min(out.find("here\r\n"), out.size()));
  };
  ASSERT_TRUE(eventually([&] { return after_the_line().find(" left | ") != std::string::npos; }));
  const std::string after = after_the_line();
  EXPECT_THAT(after.substr(after.find("ddprun none")),
              testing::StartsWith("ddprun none | generation 0 | 2 of 2 ranks alive | "));
  EXPECT_THAT(job_->out(), Not(HasSubstr("waiting for nodes"))) << "there are no others";
  let_go();
  EXPECT_EQ(job_->wait(), 0);
}

TEST_F(LauncherTerminalTest, WithQuietThereIsNoStatusButBarsHaveTheirRows) {
  start_job({"--quiet", "--nproc-per-node=2", "sh", "-c",
             "[ $RANK = 1 ] || printf '10%%\\r'; " + std::string(kUntilGo)});
  EXPECT_TRUE(shows(testing::ElementsAre("[rank 0] 10%"))) << testing::PrintToString(lines());
  let_go();
  ASSERT_EQ(job_->wait(), 0);
  EXPECT_THAT(job_->out(), Not(HasSubstr("ddprun none")));
}

TEST_F(LauncherTerminalTest, BarsHaveRowsBelowWholeLinesAndAPromptIsSeen) {
  start_job(
      {"--nproc-per-node=2", "sh", "-c",
       "if [ $RANK = 0 ]; then printf '10%%\\r'; printf '20%%\\r'; else printf 'ready? '; fi; " +
           std::string(kUntilGo) + "; echo done"});
  EXPECT_TRUE(eventually([&] {
    const std::vector<std::string> seen = lines();
    return seen.size() == 3 && seen[0] == "[rank 0] 20%" && seen[1] == "[rank 1] ready?";
  })) << testing::PrintToString(lines());
  let_go();
  ASSERT_EQ(job_->wait(), 0);
  EXPECT_THAT(lines(), testing::UnorderedElementsAre("[rank 0] done", "[rank 1] ready? done"));
}

// Each rank draws two bars as tqdm does: down, the lower bar, and up again.
TEST_F(LauncherTerminalTest, NestedBarsOfSeveralRanksKeepTheirRowsAndTheirRanks) {
  start_job({"--nproc-per-node=2", "sh", "-c",
             R"(printf "\router$RANK 0/2"; for step in 0 1 2 3 4; do )"
             R"(printf '\n'; printf "\rinner$RANK $step/4"; printf '\033[A'; )"
             R"([ $RANK = 0 ] || echo "log $step" >&2; sleep 0.05; done; )" +
                 std::string(kUntilGo) + R"(; printf '\n\n'; echo done)"});
  const auto bars = [](const std::string& rank) {
    return std::vector<std::string>{"[rank " + rank + "] outer" + rank + " 0/2",
                                    "[rank " + rank + "] inner" + rank + " 4/4"};
  };
  const std::vector<std::string> rows = joined(bars("0"), bars("1"));
  std::vector<std::string> logs;
  for (int step = 0; step < 5; ++step) logs.push_back("[rank 1] log " + std::to_string(step));
  EXPECT_TRUE(eventually([&] {
    std::vector<std::string> seen = lines();
    if (seen.size() != logs.size() + rows.size() + 1) return false;
    seen.pop_back();  // the status
    return seen == joined(logs, rows);
  })) << testing::PrintToString(lines());
  let_go();
  ASSERT_EQ(job_->wait(), 0);
  std::vector<std::string> left = joined(joined(logs, rows), {"[rank 0] done", "[rank 1] done"});
  EXPECT_TRUE(eventually([&] {
    return testing::Matches(testing::UnorderedElementsAreArray(left))(lines());
  })) << testing::PrintToString(lines());
}

TEST_F(LauncherTerminalTest, FollowsTheSizeOfItsWindowAndTellsWorkersWithATerminal) {
  start_job({"--pty", "sh", "-c",
             "trap 'stty size </dev/tty' WINCH; stty size </dev/tty; " + std::string(kUntilGo)});
  EXPECT_TRUE(shows(Contains("10 100"))) << testing::PrintToString(lines());
  job_->resize({.columns = 60, .rows = 8});
  EXPECT_TRUE(eventually([&] { return job_->out().find("8 60\r\n") != std::string::npos; }))
      << job_->out();
  let_go();
  ASSERT_EQ(job_->wait(), 0);
}

TEST_F(LauncherTerminalTest, NothingIsDrawnWhereItIsNotWanted) {
  for (const Variables& variables :
       {Variables{{"TERM", "dumb"}}, Variables{{"TERM", "xterm"}, {"NO_COLOR", "1"}}}) {
    ChildProcess::Options options = environment(variables);
    options.terminal = {kColumns, kRows};
    ChildProcess job({program("ddprun"), "--nproc-per-node=2", "sh", "-c", "echo $RANK"}, options);
    ASSERT_EQ(job.wait(), 0);
    EXPECT_TRUE(eventually([&] { return lines_of(job.out()).size() == 2; }));
    EXPECT_THAT(job.out(), AllOf(Not(HasSubstr("\x1b")), HasSubstr("[rank 1] 1\r\n")));
  }
}

TEST_F(LauncherTerminalTest, AWorkerMayReadTheTerminal) {
  start_job({"--nproc-per-node=2", "--stdin", "sh", "-c",
             "[ $RANK = 0 ] || exit 0; test -t 0 || exit 9; read x; echo got $x"});
  job_->type("hello\n");
  EXPECT_EQ(job_->wait(), 0) << job_->out();
  EXPECT_TRUE(eventually([&] { return job_->out().find("got hello\r\n") != std::string::npos; }))
      << job_->out();
}

TEST_F(LauncherTerminalTest, WhatIsTypedReachesAWorkerWithATerminalOfItsOwn) {
  start_job({"--nproc-per-node=2", "--stdin", "--pty", "sh", "-c",
             "[ $RANK = 0 ] || exit 0; test -t 0 || exit 9; read x; echo got $x; cat; echo end"});
  job_->type("hello\n");
  EXPECT_TRUE(eventually([&] { return job_->out().find("got hello\r\n") != std::string::npos; }))
      << job_->out();
  job_->type("\x04");  // the end of the input
  EXPECT_EQ(job_->wait(), 0) << job_->out();
  EXPECT_THAT(job_->out(), HasSubstr("end\r\n"));
}

TEST_F(LauncherTerminalTest, AKilledAgentLeavesNoStatusLine) {
  start_job({"sh", "-c", std::string(kUntilGo)});
  ASSERT_TRUE(shows(Contains(HasSubstr("ranks alive")))) << testing::PrintToString(lines());
  kill(tree_of(*job_).agent, SIGKILL);
  EXPECT_TRUE(job_->wait().has_value());
  EXPECT_TRUE(shows(Contains(HasSubstr("was killed by SIGKILL"))))
      << testing::PrintToString(lines());
  EXPECT_THAT(lines(), Not(Contains(HasSubstr("ranks alive"))));
}

TEST_F(LauncherTerminalTest, CtrlZTakesTheStatusLineAway) {
  start_job({"sh", "-c", std::string(kUntilGo)});
  ASSERT_TRUE(shows(Contains(HasSubstr("ranks alive"))));
  job_->signal(SIGTSTP);
  EXPECT_TRUE(shows(Not(Contains(HasSubstr("ranks alive"))))) << testing::PrintToString(lines());
  EXPECT_TRUE(eventually([&] {
    return read_file("/proc/" + std::to_string(job_->pid()) + "/stat").find(") T ") !=
           std::string::npos;
  })) << "the guardian, which a shell waits for, has stopped";
  job_->signal(SIGCONT);
  EXPECT_TRUE(shows(Contains(HasSubstr("ranks alive"))));
  let_go();
  EXPECT_EQ(job_->wait(), 0);
}

}  // namespace
}  // namespace ddprun::testing_support
