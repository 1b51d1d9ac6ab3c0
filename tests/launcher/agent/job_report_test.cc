#include "launcher/agent/job_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class JobReportTest : public testing::Test {
 protected:
  // Returns what is logged at the end of a job that trained for this time.
  std::string said(Duration trained, bool has_steps, int generations, bool is_first_node = true) {
    JobTimes times{.generations = generations, .has_steps = has_steps};
    times[TimeCause::kTraining] = trained;
    said_.clear();
    report_.verdict({.success = true, .times = times}, is_first_node);
    return said_;
  }

  std::string said_;
  Logger log_{"ddprun", [this](std::string_view line) { said_ += line; }};
  FileWork files_;
  JobReport report_{log_, files_, LaunchOptions{}};
};

TEST_F(JobReportTest, ALineSaysWhereTheTimeOfALongJobWent) {
  EXPECT_EQ(said(seconds(90), true, 1), "ddprun: goodput 100.0 % of 1 min 30 s\n");
  EXPECT_EQ(said(seconds(60), false, 2), "ddprun: goodput at most 100.0 % of 1 min 0 s\n");
}

TEST_F(JobReportTest, ShortJobsAndThoseOfWhichNothingIsKnownHaveNoLine) {
  EXPECT_EQ(said(seconds(59), true, 1), "");
  EXPECT_EQ(said(seconds(90), false, 1), "");
}

TEST_F(JobReportTest, OnlyTheFirstNodeHasTheLine) {
  EXPECT_EQ(said(seconds(90), true, 1, /*is_first_node=*/false), "");
}

TEST_F(JobReportTest, AJobThatFailsHasTheLineToo) {
  JobTimes times{.generations = 1, .has_steps = true};
  times[TimeCause::kTraining] = seconds(90);
  report_.verdict({.exit_code = 1, .headline = "rank 3 exited with code 1", .times = times}, true);
  EXPECT_THAT(said_, HasSubstr("rank 3 exited with code 1"));
  EXPECT_TRUE(said_.ends_with("ddprun: goodput 100.0 % of 1 min 30 s\n")) << said_;
}

}  // namespace
}  // namespace ddprun
