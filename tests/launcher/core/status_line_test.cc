#include "launcher/core/status_line.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

TEST(StatusLine, SaysHowTheJobIs) {
  StatusFacts facts{.job = "run7", .slots = 8, .restarts_left = 1};
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

}  // namespace
}  // namespace ddprun
