#include "rendezvous/membership/core/node_order.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/rng.h"

namespace ddprun {
namespace {

using Order = std::vector<std::size_t>;

NodeCandidate newcomer(std::string host, std::optional<int> wanted = {}) {
  return {.host = host, .agent_id = "id-" + host, .wanted_rank = wanted, .previous_rank = {}};
}
NodeCandidate veteran(std::string host, int previous) {
  return {.host = host, .agent_id = "id-" + host, .wanted_rank = {}, .previous_rank = previous};
}

TEST(NaturalLess, OrdersNumbersInNamesAsPeopleCount) {
  std::vector<std::string> names{"node10", "node2", "a", "node1", "node", "rack2-n1", "rack1-n10"};
  std::sort(names.begin(), names.end(), natural_less);
  EXPECT_EQ(names, (std::vector<std::string>{"a", "node", "node1", "node2", "node10", "rack1-n10",
                                             "rack2-n1"}));
}

TEST(NaturalLess, IsATotalOrderAlsoForPaddedNumbers) {
  EXPECT_NE(natural_less("n1", "n01"), natural_less("n01", "n1"));
  EXPECT_FALSE(natural_less("n01", "n01"));
  EXPECT_TRUE(natural_less("n01a", "n2"));
}

TEST(OrderNodes, GivesTheFirstGenerationItsRanksByName) {
  EXPECT_EQ(order_nodes({newcomer("node10"), newcomer("node2"), newcomer("node1")}, 3),
            (Order{2, 1, 0}));
}

TEST(OrderNodes, HonoursTheRanksThatWereAskedFor) {
  EXPECT_EQ(order_nodes({newcomer("a", 1), newcomer("b", 0)}, 2), (Order{1, 0}));
  EXPECT_EQ(order_nodes({newcomer("a"), newcomer("b", 0), newcomer("c")}, 3), (Order{1, 0, 2}));
}

TEST(OrderNodes, FillsAHoleWithASpare) {
  const std::vector<NodeCandidate> nodes{veteran("n0", 0), newcomer("spare"), veteran("n2", 2)};
  EXPECT_EQ(order_nodes(nodes, 3), (Order{0, 1, 2}));
}

TEST(OrderNodes, FillsAHoleWithTheHighestNodeWhenThereIsNoSpare) {
  const std::vector<NodeCandidate> nodes{veteran("n0", 0), veteran("n2", 2), veteran("n3", 3)};
  EXPECT_EQ(order_nodes(nodes, 4), (Order{0, 2, 1}));
}

TEST(OrderNodes, LeavesOutTheSurplusButNeverAVeteran) {
  const std::vector<NodeCandidate> nodes{newcomer("a"), veteran("z", 1), veteran("y", 0)};
  EXPECT_EQ(order_nodes(nodes, 2), (Order{2, 1}));
}

TEST(OrderNodes, PrefersWhoHasNotFailed) {
  const auto failed = [](NodeCandidate node, int times) {
    node.failures = times;
    return node;
  };
  const NodeCandidate bad = failed(veteran("n0", 0), 3);
  EXPECT_EQ(order_nodes({bad, veteran("n1", 1), newcomer("spare")}, 2), (Order{2, 1}));
  EXPECT_EQ(order_nodes({bad, veteran("n1", 1)}, 2), (Order{0, 1})) << "there is nobody else";
  EXPECT_EQ(order_nodes({bad, failed(veteran("n1", 1), 5), newcomer("spare")}, 2), (Order{0, 2}))
      << "the one that failed least stays";
  EXPECT_EQ(order_nodes({bad, failed(newcomer("spare"), 3)}, 1), (Order{0})) << "or who was in it";
}

// Holds for random histories:
// - The order is a permutation without gaps.
// - A veteran whose rank is below n keeps it.
// - No node is left out while there is room.
TEST(OrderNodes, KeepsEveryVeteranWhoseRankExistsInItsPlace) {
  Rng rng(7);
  for (int round = 0; round < 2000; ++round) {
    const int previous_size = static_cast<int>(rng.below(6));
    std::vector<NodeCandidate> nodes;
    for (int rank = 0; rank < previous_size; ++rank) {
      if (rng.chance(0.7)) nodes.push_back(veteran("old" + std::to_string(rank), rank));
    }
    const int newcomers = static_cast<int>(rng.below(4));
    for (int i = 0; i < newcomers; ++i) {
      std::optional<int> wanted;
      if (rng.chance(0.3)) wanted = static_cast<int>(rng.below(6));
      nodes.push_back(newcomer("new" + std::to_string(i), wanted));
    }
    if (nodes.empty()) continue;
    const int max_nodes = std::max(previous_size, 1 + static_cast<int>(rng.below(6)));
    const Order order = order_nodes(nodes, max_nodes);

    ASSERT_EQ(order.size(), std::min(nodes.size(), static_cast<std::size_t>(max_nodes)));
    Order sorted = order;
    std::sort(sorted.begin(), sorted.end());
    ASSERT_TRUE(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end());
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      if (!nodes[i].previous_rank) continue;
      ASSERT_TRUE(std::find(order.begin(), order.end(), i) != order.end());
      const auto rank = static_cast<std::size_t>(*nodes[i].previous_rank);
      if (rank < order.size()) {
        ASSERT_EQ(order[rank], i) << "round " << round;
      }
    }
  }
}

}  // namespace
}  // namespace ddprun
