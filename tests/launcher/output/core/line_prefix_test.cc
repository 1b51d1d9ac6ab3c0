#include "launcher/output/core/line_prefix.h"

#include <gtest/gtest.h>

#include <set>

namespace ddprun {
namespace {

TEST(LinePrefix, OursNamesTheRankAndNeighboursDifferInColour) {
  EXPECT_EQ(rank_prefix(Rank(12), false), "[rank 12] ");
  std::set<std::string> colours;
  for (int rank = 0; rank < 10; ++rank) {
    const std::string prefix = rank_prefix(Rank(rank), true);
    EXPECT_EQ(prefix.substr(prefix.find('m') + 1), "[rank " + std::to_string(rank) + "]\x1b[0m ");
    colours.insert(prefix.substr(0, prefix.find('m')));
  }
  EXPECT_EQ(colours.size(), 10u);
}

TEST(LinePrefix, TorchrunsIsItsOwnOrWhatTheTemplateMakesOfIt) {
  const auto prefix = [](std::string_view pattern) {
    return tee_prefix(
        {.pattern = pattern, .role = "trainer", .local_rank = LocalRank(3), .rank = Rank(11)});
  };
  EXPECT_EQ(prefix(""), "[trainer3]:");
  EXPECT_EQ(prefix("${rank}/${local_rank}/${role_name}> "), "11/3/trainer> ");
  EXPECT_EQ(prefix("${hostname} $rank ${rank"), "${hostname} $rank ${rank") << "left as text";
}

}  // namespace
}  // namespace ddprun
