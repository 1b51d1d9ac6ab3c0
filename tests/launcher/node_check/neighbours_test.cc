#include "launcher/node_check/neighbours.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/process/side_by_side.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/store/client.h"
#include "tests/support/running_store.h"

namespace ddprun {
namespace {

using testing_support::RunningStore;

// Runs these nodes at the same time. Returns the links of each.
std::vector<std::vector<LinkMeasurement>> measure(std::vector<NeighbourPlan> plans) {
  std::vector<std::vector<LinkMeasurement>> links(plans.size());
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < plans.size(); ++i) {
    bodies.emplace_back([&, i] { links[i] = measure_links(plans[i]); });
  }
  side_by_side(std::move(bodies));
  return links;
}

std::vector<NeighbourPlan> nodes_at(const HostPort& store, int count) {
  std::vector<NeighbourPlan> plans;
  for (int node = 0; node < count; ++node) {
    plans.push_back({.store = store,
                     .node = NodeRank(node),
                     .node_count = count,
                     .host = "host" + std::to_string(node),
                     .enough = 1});
  }
  return plans;
}

TEST(MeasureLinks, EachNodeMeasuresWithTheNextAndThePreviousOne) {
  RunningStore store;
  const auto links = measure(nodes_at({"127.0.0.1", store.port()}, 3));
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_EQ(links[i].size(), 2u) << i;
    EXPECT_EQ(links[i][0].host, "host" + std::to_string((i + 1) % 3));
    EXPECT_EQ(links[i][1].host, "host" + std::to_string((i + 2) % 3));
    EXPECT_EQ(links[i][1].node, NodeRank(static_cast<int>((i + 2) % 3)));
    for (const LinkMeasurement& link : links[i]) {
      EXPECT_EQ(link.error, "");
      EXPECT_GT(link.bytes_per_s, 0);
    }
  }
  // Both ends of a link know what one of them has measured, in whole bytes.
  EXPECT_NEAR(links[0][0].bytes_per_s, links[1][1].bytes_per_s, 1);
}

TEST(MeasureLinks, TwoNodesHaveOneNeighbourOnBothSides) {
  RunningStore store;
  const auto links = measure(nodes_at({"127.0.0.1", store.port()}, 2));
  ASSERT_EQ(links[0].size(), 2u);
  EXPECT_EQ(links[0][0].node, NodeRank(1));
  EXPECT_EQ(links[0][1].node, NodeRank(1));
}

TEST(MeasureLinks, AConnectionThatSendsNothingDoesNotKeepTheNeighbourWaiting) {
  RunningStore store;
  const HostPort place{"127.0.0.1", store.port()};
  std::vector<NeighbourPlan> plans = nodes_at(place, 2);
  std::vector<LinkMeasurement> first, second;
  side_by_side({[&] { first = measure_links(plans[0]); },
                [&] {
                  const auto client = StoreClient::connect({.address = place, .prefix = "ddprun"});
                  ASSERT_TRUE(client);
                  const auto published = (*client)->get("node_check/0", std::chrono::seconds(3));
                  ASSERT_TRUE(published);
                  const std::string address = published->substr(0, published->find(' '));
                  const auto silent =
                      BlockingSocket::connect(*numeric_address(*parse_host_port(address)),
                                              Deadline(std::chrono::seconds(3)));
                  ASSERT_TRUE(silent);
                  second = measure_links(plans[1]);
                }});
  EXPECT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_EQ(second[0].error, "");
}

TEST(MeasureLinks, LeavesOutANeighbourThatTakesNoPart) {
  RunningStore store;
  std::vector<NeighbourPlan> plans = nodes_at({"127.0.0.1", store.port()}, 2);
  plans[0].takes_part = false;
  const auto links = measure(plans);
  EXPECT_TRUE(links[0].empty());
  EXPECT_TRUE(links[1].empty());
}

TEST(MeasureLinks, ANodeAloneOrWithoutAStoreHasNone) {
  EXPECT_TRUE(measure_links({.node_count = 1}).empty());
  HostPort nowhere;
  {
    RunningStore store;
    nowhere = {"127.0.0.1", store.port()};
  }
  EXPECT_TRUE(measure_links({.store = nowhere, .node_count = 2}).empty());
}

}  // namespace
}  // namespace ddprun
