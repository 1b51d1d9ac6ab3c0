#include "launcher/agent/core/node_progress.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

const TimePoint kStart = TimePoint(seconds(100));

TEST(NodeProgress, KnowsOfNoGenerationAtFirst) {
  NodeProgress progress;
  EXPECT_FALSE(progress.generation_since());
  EXPECT_FALSE(progress.highest_step());
  progress.generation_began(kStart);
  EXPECT_EQ(progress.generation_since(), kStart);
}

TEST(NodeProgress, CountsTheTimeThatWorkersAreSuspended) {
  NodeProgress progress;
  progress.generation_began(kStart);
  progress.suspended(kStart + seconds(1));
  EXPECT_EQ(progress.suspended_for(kStart + seconds(3)), seconds(2));
  progress.resumed(kStart + seconds(4));
  EXPECT_EQ(progress.suspended_for(kStart + seconds(9)), seconds(3));
  progress.resumed(kStart + seconds(9));
  progress.suspended(kStart + seconds(10));
  EXPECT_EQ(progress.suspended_for(kStart + seconds(11)), seconds(4));
}

TEST(NodeProgress, TheNextGenerationWasNotSuspended) {
  NodeProgress progress;
  progress.generation_began(kStart);
  progress.suspended(kStart);
  progress.resumed(kStart + seconds(5));
  progress.generation_began(kStart + seconds(6));
  EXPECT_EQ(progress.suspended_for(kStart + seconds(7)), Duration(0));
}

TEST(NodeProgress, TheHighestStepOutlivesItsGeneration) {
  NodeProgress progress;
  progress.see_step(7);
  progress.see_step(std::nullopt);
  progress.generation_began(kStart);
  progress.see_step(5);
  EXPECT_EQ(progress.highest_step(), 7);
  progress.see_step(8);
  EXPECT_EQ(progress.highest_step(), 8);
}

TEST(NodeProgress, MarksOnlyTheSlowRanksOfThisGeneration) {
  NodeProgress progress;
  progress.set_slow({{.local_rank = LocalRank(1), .cost = "the others wait"}});
  std::vector<RankRow> rows(2);
  rows[0].local_rank = LocalRank(0);
  rows[1].local_rank = LocalRank(1);
  std::vector<RankRow> marked = rows;
  progress.mark_slow(marked);
  EXPECT_EQ(marked[0].slow, "");
  EXPECT_EQ(marked[1].slow, "the others wait");
  progress.generation_began(kStart);
  marked = rows;
  progress.mark_slow(marked);
  EXPECT_EQ(marked[1].slow, "");
}

TEST(NodeProgress, ReportsLessAndLessOften) {
  NodeProgress progress;
  EXPECT_EQ(progress.next_pause(), seconds(1));
  EXPECT_EQ(progress.next_pause(), seconds(2));
  for (int i = 0; i < 5; ++i) progress.next_pause();
  EXPECT_EQ(progress.next_pause(), seconds(30));
  progress.generation_began(kStart);
  EXPECT_EQ(progress.next_pause(), seconds(1));
}

}  // namespace
}  // namespace ddprun
