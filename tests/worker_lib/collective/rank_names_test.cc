#include "worker_lib/collective/rank_names.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

TEST(RankNames, RanksAreNamedInRuns) {
  EXPECT_EQ(name_rank(3), "rank 3");
  EXPECT_EQ(name_ranks(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(name_ranks(std::vector<int>{1, 2}), "ranks 1 and 2");
  EXPECT_EQ(name_ranks(std::vector<int>{0, 1, 2, 3, 9}), "ranks 0-3 and 9");
  EXPECT_EQ(name_ranks(std::vector<int>{1, 4, 7}), "ranks 1, 4 and 7");
}

}  // namespace
}  // namespace ddprun
