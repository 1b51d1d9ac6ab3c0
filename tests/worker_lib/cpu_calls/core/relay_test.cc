#include "worker_lib/cpu_calls/core/relay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(Relay, AChainGoesFromOneToTheNext) {
  EXPECT_EQ(relay_in_chain(0, 3), (Relay{.from = -1, .to = {1}}));
  EXPECT_EQ(relay_in_chain(1, 3), (Relay{.from = 0, .to = {2}}));
  EXPECT_EQ(relay_in_chain(2, 3), (Relay{.from = 1, .to = {}}));
}

TEST(Relay, ATreeServesTheLargestPartFirst) {
  EXPECT_THAT(relay_in_tree(0, 8).to, ElementsAre(4, 2, 1));
  EXPECT_THAT(relay_in_tree(4, 8).to, ElementsAre(6, 5));
  EXPECT_THAT(relay_in_tree(6, 8).to, ElementsAre(7));
  EXPECT_THAT(relay_in_tree(7, 8).to, IsEmpty());
  EXPECT_THAT(relay_in_tree(0, 6).to, ElementsAre(4, 2, 1));
  EXPECT_THAT(relay_in_tree(4, 6).to, ElementsAre(5));
}

TEST(Relay, EveryNodeIsReachedOnceByTheOneItWaitsFor) {
  for (int nodes = 1; nodes < 70; ++nodes) {
    for (const auto relay_of : {relay_in_chain, relay_in_tree}) {
      std::vector<int> served_by(nodes, -1);
      for (int node = 0; node < nodes; ++node) {
        for (const int to : relay_of(node, nodes).to) {
          ASSERT_EQ(served_by.at(to), -1);
          served_by[to] = node;
        }
      }
      for (int node = 0; node < nodes; ++node) {
        EXPECT_EQ(relay_of(node, nodes).from, served_by[node]) << node << " of " << nodes;
        // The source is nearer to the root: each waiting node waits for a node that is served.
        EXPECT_LT(relay_of(node, nodes).from, node);
      }
    }
  }
}

TEST(Relay, TheTreeIsForFewChunksAndManyNodes) {
  EXPECT_FALSE(tree_is_shorter(1, 1));
  EXPECT_FALSE(tree_is_shorter(1, 2));
  EXPECT_FALSE(tree_is_shorter(1, 3));
  EXPECT_TRUE(tree_is_shorter(1, 4));
  EXPECT_FALSE(tree_is_shorter(2, 4));
  EXPECT_TRUE(tree_is_shorter(2, 8));
  EXPECT_FALSE(tree_is_shorter(3, 8));
  EXPECT_TRUE(tree_is_shorter(12, 64));
  EXPECT_FALSE(tree_is_shorter(100, 64));
}

}  // namespace
}  // namespace ddprun
