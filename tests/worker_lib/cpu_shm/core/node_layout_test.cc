#include "worker_lib/cpu_shm/core/node_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/rng.h"
#include "tests/worker_lib/cpu_shm/core/layout_of.h"

namespace ddprun {
namespace {

TEST(NodeLayout, GroupsRanksByNodeInTheOrderOfTheirLowestRank) {
  const NodeLayout layout = layout_of("bbaab");
  EXPECT_EQ(layout.nodes, (std::vector<std::vector<int>>{{0, 1, 4}, {2, 3}}));
  EXPECT_EQ(layout.node_of, (std::vector<int>{0, 0, 1, 1, 0}));
  EXPECT_EQ(layout.local_of, (std::vector<int>{0, 1, 0, 1, 2}));
}

TEST(NodeLayout, HasAsManyLanesAsTheSmallestNodeHasRanks) {
  EXPECT_EQ(layout_of("a").lanes, 1);
  EXPECT_EQ(layout_of("aaaa").lanes, 4);
  EXPECT_EQ(layout_of("aaabb").lanes, 2);
  EXPECT_EQ(layout_of("aabbc").lanes, 1);
}

TEST(NodeLayout, PutsTheRanksOfALaneSideBySide) {
  const NodeLayout layout = layout_of("aaabb");
  EXPECT_EQ(layout.rank_at, (std::vector<int>{0, 2, 3, 1, 4}));
  EXPECT_EQ(layout.lane_positions(0), (Range{0, 3}));
  EXPECT_EQ(layout.lane_positions(0, 0), (Range{0, 2}));
  EXPECT_EQ(layout.lane_positions(1, 1), (Range{4, 5}));
  EXPECT_EQ(layout.lane_of(2), 0);
  EXPECT_FALSE(layout.leads_lane(2));
}

TEST(NodeLayout, LinksTheLeadersOfALaneAndLeavesNobodyWithoutNews) {
  const NodeLayout layout = layout_of("aaabb");
  EXPECT_EQ(links_of(layout, 0), (std::vector<PeerLink>{{3, true}, {4, false}}));
  EXPECT_EQ(links_of(layout, 1), (std::vector<PeerLink>{{3, false}, {4, true}}));
  EXPECT_EQ(links_of(layout, 2), (std::vector<PeerLink>{{3, false}, {4, false}}));
  EXPECT_EQ(links_of(layout, 3), (std::vector<PeerLink>{{0, true}, {1, false}, {2, false}}));
}

TEST(NodeLayout, RandomLayoutsAreConsistentAndTheirLinksMutual) {
  Rng rng(11);
  for (int trial = 0; trial < 300; ++trial) {
    std::string letters;
    const std::size_t ranks = 1 + rng.below(24);
    const std::size_t nodes = 1 + rng.below(5);
    for (std::size_t i = 0; i < ranks; ++i) letters += static_cast<char>('a' + rng.below(nodes));
    const NodeLayout layout = layout_of(letters);
    ASSERT_EQ(layout.world_size(), static_cast<int>(ranks));
    for (int rank = 0; rank < layout.world_size(); ++rank) {
      ASSERT_EQ(layout.nodes[layout.node_of[rank]][layout.local_of[rank]], rank);
      ASSERT_EQ(layout.rank_at[layout.position_of[rank]], rank);
      const Range group = layout.lane_positions(layout.lane_of(rank), layout.node_of[rank]);
      const std::size_t position = layout.position_of[rank];
      ASSERT_TRUE(group.begin <= position && position < group.end) << letters;

      std::map<int, int> reached;  // by node: the number of its linked ranks
      for (const PeerLink& link : links_of(layout, rank)) {
        ASSERT_NE(layout.node_of[link.peer], layout.node_of[rank]);
        ++reached[layout.node_of[link.peer]];
        const auto back = links_of(layout, link.peer);
        ASSERT_EQ(std::count(back.begin(), back.end(), PeerLink{rank, link.carries_data}), 1)
            << letters;
      }
      ASSERT_EQ(static_cast<int>(reached.size()), layout.node_count() - 1) << letters;
      for (const auto& [node, links] : reached) {
        ASSERT_GE(links, std::min(2, layout.local_count(node)))
            << "one can tell of another, " << letters;
      }
    }
    for (int lane = 0; lane < layout.lanes; ++lane) {
      for (int node = 1; node < layout.node_count(); ++node) {
        const auto links = links_of(layout, layout.lane_leader(lane, 0));
        const PeerLink wanted{layout.lane_leader(lane, node), true};
        ASSERT_EQ(std::count(links.begin(), links.end(), wanted), 1) << letters;
      }
    }
  }
}

}  // namespace
}  // namespace ddprun
