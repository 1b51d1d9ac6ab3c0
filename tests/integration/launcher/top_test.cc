// Tests `ddprun top`: the real binary on a pseudo terminal, with real jobs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <regex>

#include "base/exit_codes.h"
#include "tests/integration/launcher/control_jobs_frame.h"
#include "tests/support/host_has.h"

namespace ddprun::testing_support {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

// `ddprun top` is started by a shell, as a user starts it. The shell compares the modes of the
// terminal before and after it.
class TopTest : public ControlByServiceTest {
 protected:
  // Other jobs may run on this host.
  const std::string kJob = "seen-by-top";
  static constexpr int kColumns = 100;
  static constexpr int kRows = 12;

  void SetUp() override {
    ControlByServiceTest::SetUp();
    if (!host_has_pseudo_terminals()) GTEST_SKIP() << kNoPseudoTerminals;
  }
  void open_top(const std::string& arguments = "") {
    ChildProcess::Options options =
        environment({{"XDG_RUNTIME_DIR", runtime()}, {"USER", "ada"}, {"TERM", "xterm"}});
    options.terminal = {kColumns, kRows};
    const std::string script = "trap : INT; before=$(stty -g); " + program("ddprun") + " top " +
                               arguments +
                               "; code=$?; [ \"$(stty -g)\" = \"$before\" ] || echo CHANGED; "
                               "echo \"top ended with $code\"";
    top_ = std::make_unique<ChildProcess>(Arguments{"sh", "-c", script}, options);
  }
  // Returns what follows the last one of these control sequences.
  std::string after(std::string_view sequence) const {
    const std::string out = top_->out();
    const std::size_t found = out.rfind(sequence);
    return found == std::string::npos ? "" : out.substr(found + sequence.size());
  }
  bool is_on_a_screen_of_its_own() const {
    return after("\x1b[?1049h").find("\x1b[?1049l") == std::string::npos &&
           top_->out().find("\x1b[?1049h") != std::string::npos;
  }
  // Returns what the terminal shows now. Each picture begins with a cursor movement to its corner.
  std::vector<std::string> lines() const {
    const std::string bytes = is_on_a_screen_of_its_own() ? after("\x1b[H") : after("\x1b[?1049l");
    std::vector<std::string> all = lines_of(without_sequences(bytes));
    for (std::string& line : all) line.erase(line.find_last_not_of(" \r") + 1);
    return all;
  }
  static std::string without_sequences(const std::string& bytes) {
    return std::regex_replace(bytes, std::regex("\x1b\\[[0-9;?]*[A-Za-z]"), "");
  }
  bool shows(const testing::Matcher<const std::vector<std::string>&>& expected) const {
    return eventually([&] { return testing::Matches(expected)(lines()); });
  }
  // Returns the first words of the rows of ranks. An incomplete picture counts as a row.
  std::vector<std::string> ranks() const {
    const std::vector<std::string> all = lines();
    if (all.size() < kRows) return {"incomplete"};
    std::vector<std::string> found;
    bool is_below = false;
    for (const std::string& line : all) {
      const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
      if (is_below && !line.empty())
        found.push_back(line.substr(begin, line.find(' ', begin) - begin));
      is_below = is_below || line.starts_with("RANK");
    }
    if (!found.empty()) found.pop_back();  // the line of the keys
    return found;
  }
  void expect_end(int code) {
    EXPECT_EQ(top_->wait(), 0);
    EXPECT_TRUE(shows(Contains("top ended with " + std::to_string(code))))
        << testing::PrintToString(lines());
    EXPECT_FALSE(is_on_a_screen_of_its_own());
    EXPECT_THAT(lines(), Not(Contains("CHANGED"))) << "the modes of the terminal";
    EXPECT_TRUE(top_->out().ends_with("\r\n")) << "echoed as usual";
  }

  std::unique_ptr<ChildProcess> top_;
};

TEST_F(TopTest, ShowsAStoppedRankFirstAndLeavesTheTerminalAsItWas) {
  auto job =
      launch_shell({"--nproc-per-node=3", "--rdzv-id=" + kJob}, until_go_after("echo up $RANK"));
  ASSERT_TRUE(job->wait_for_out("up 0") && job->wait_for_out("up 1") && job->wait_for_out("up 2"));
  const nlohmann::json status = run_ddprun({"status", "--json", kJob}).object();
  ASSERT_EQ(status["agents"].size(), 1u) << status;
  ASSERT_EQ(status["agents"][0]["workers"].size(), 3u) << status;
  const pid_t stopped = status["agents"][0]["workers"][1]["pid"];
  ASSERT_EQ(kill(stopped, SIGSTOP), 0);
  open_top(kJob);
  const auto has_ranks = [&](const std::vector<std::string>& expected) {
    return eventually([&] { return ranks() == expected; });
  };
  EXPECT_TRUE(has_ranks({"1", "0", "2"})) << testing::PrintToString(lines());
  EXPECT_THAT(lines(), AllOf(Contains(StartsWith("job 'seen-by-top': running, generation 0")),
                             Contains(HasSubstr(" stopped")), Contains(StartsWith("q quit"))));
  top_->type("sr");
  EXPECT_TRUE(has_ranks({"2", "1", "0"})) << testing::PrintToString(lines());
  top_->type("/stopped\r");
  EXPECT_TRUE(has_ranks({"1"})) << testing::PrintToString(lines());
  kill(stopped, SIGCONT);
  EXPECT_TRUE(has_ranks({})) << testing::PrintToString(lines());
  top_->type("\x1b");
  EXPECT_TRUE(has_ranks({"2", "1", "0"})) << testing::PrintToString(lines());
  top_->type("q");
  expect_end(0);
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(TopTest, CtrlCAndSigtermRestoreTheTerminal) {
  auto job = running_job(kJob);
  open_top(kJob);
  ASSERT_TRUE(shows(Contains(StartsWith("job 'seen-by-top'")))) << testing::PrintToString(lines());
  top_->type("\x03");
  expect_end(130);
  open_top(kJob);
  ASSERT_TRUE(shows(Contains(StartsWith("job 'seen-by-top'")))) << testing::PrintToString(lines());
  kill(first_child_of(top_->pid()), SIGTERM);
  expect_end(143);
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(TopTest, RunsOtherCommandsForTheSelectedRank) {
  auto job = running_job(kJob);
  open_top(kJob);
  ASSERT_TRUE(shows(Contains(StartsWith("job 'seen-by-top'")))) << testing::PrintToString(lines());
  top_->type("jl");
  EXPECT_TRUE(shows(AllOf(Contains("rank 1 has begun"), Contains(HasSubstr("press a key")))))
      << testing::PrintToString(lines());
  top_->type("x");
  EXPECT_TRUE(eventually([&] { return is_on_a_screen_of_its_own(); }));
  top_->type("f");
  EXPECT_TRUE(shows(Contains(HasSubstr("press a key")))) << testing::PrintToString(lines());
  top_->type("\x03");
  expect_end(130);
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(TopTest, SaysThatTheJobHasEndedAndStays) {
  auto job = running_job(kJob);
  open_top(kJob);
  ASSERT_TRUE(shows(Contains(StartsWith("job 'seen-by-top'")))) << testing::PrintToString(lines());
  let_go();
  ASSERT_EQ(job->wait(), 0);
  EXPECT_TRUE(shows(Contains(StartsWith("the job has ended")))) << testing::PrintToString(lines());
  EXPECT_THAT(lines(), Contains(StartsWith("q quit")));
  top_->type("q");
  expect_end(0);
}

TEST_F(TopTest, WithoutATerminalItPrintsATable) {
  auto job = running_job(kJob);
  const CommandResult table = run_ddprun({"top", kJob});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, AllOf(StartsWith("job 'seen-by-top': running, generation 0"),
                               HasSubstr("\nRANK"), Not(HasSubstr("\x1b"))));
  open_top("--once " + kJob);
  EXPECT_EQ(top_->wait(), 0);
  EXPECT_THAT(top_->out(), HasSubstr("top ended with 0"));
  EXPECT_THAT(top_->out(), Not(HasSubstr("\x1b")));
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(TopTest, ThroughTheServiceItShowsTheOnlyJob) {
  start_service();
  auto job = begin_job();
  const CommandResult table = ask({"top"});
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_THAT(table.out, StartsWith("job 'train': running, generation 0"));
  open_top("--rdzv-endpoint=" + endpoint_);
  ASSERT_TRUE(shows(Contains(StartsWith("job 'train'")))) << testing::PrintToString(lines());
  let_go();
  EXPECT_EQ(job->wait(), 0);
  EXPECT_TRUE(shows(Contains(StartsWith("ended with exit code 0"))))
      << testing::PrintToString(lines());
  top_->type("q");
  expect_end(0);
}

}  // namespace
}  // namespace ddprun::testing_support
