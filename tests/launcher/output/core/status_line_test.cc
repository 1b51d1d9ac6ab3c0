#include "launcher/output/core/status_line.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

TEST(StatusLine, SaysHowTheJobIs) {
  StatusFacts facts{.job = "run7", .slots = 8, .restarts_left = 1};
  EXPECT_EQ(status_line(facts), "ddprun run7 | starting | 1 restart left | 0:00:00");
  facts.meets_others = true;
  EXPECT_EQ(status_line(facts), "ddprun run7 | waiting for nodes | 1 restart left | 0:00:00");
  facts.generation = Generation(2);
  facts.alive = 7;
  facts.world_size = 8;
  facts.restarts_left = 0;
  facts.elapsed = seconds(3600 * 27 + 62);
  EXPECT_EQ(status_line(facts),
            "ddprun run7 | generation 2 | 7 of 8 ranks alive | 0 restarts left | 27:01:02");
  facts.world_size = 32;
  EXPECT_EQ(status_line(facts),
            "ddprun run7 | generation 2 | 7 of 8 ranks alive here, 32 in all | 0 restarts left | "
            "27:01:02");
}

TEST(StatusLine, TellsStepsWhereWorkersReportThem) {
  StatusFacts facts{.job = "j", .generation = Generation(0), .alive = 1, .slots = 1};
  facts.step = 1200;
  EXPECT_NE(status_line(facts).find(" | step 1200 | "), std::string::npos) << status_line(facts);
  facts.steps_per_second = 12.53;
  EXPECT_NE(status_line(facts).find(" | step 1200, 12.5 steps/s | "), std::string::npos);
  facts.steps_per_second = 0.125;
  EXPECT_NE(status_line(facts).find(", 0.12 steps/s"), std::string::npos) << status_line(facts);
  facts.steps_per_second = 1234.5;
  EXPECT_NE(status_line(facts).find(", 1234 steps/s"), std::string::npos) << status_line(facts);
}

}  // namespace
}  // namespace ddprun
