#include "rendezvous/service/local_agents.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

class LocalAgentsTest : public testing::Test {
 protected:
  void add(int id) {
    agents_.add(
        AgentConnectionId(id), [this](const ServiceMessage&) { ++delivered_; }, nullptr);
  }

  boost::asio::io_context io_{1};
  LocalAgents agents_{io_};
  int delivered_ = 0;
};

TEST_F(LocalAgentsTest, AMessageIsDeliveredLater) {
  add(1);
  agents_.deliver(AgentConnectionId(1), Wait{"for others"});
  EXPECT_EQ(delivered_, 0);
  io_.run();
  EXPECT_EQ(delivered_, 1);
}

TEST_F(LocalAgentsTest, NothingIsDeliveredToAnAgentThatIsGone) {
  add(1);
  agents_.deliver(AgentConnectionId(1), Wait{"for others"});
  agents_.remove(AgentConnectionId(1));
  EXPECT_TRUE(agents_.empty());
  io_.run();
  EXPECT_EQ(delivered_, 0);
}

TEST_F(LocalAgentsTest, AnAgentMayEndAllFromWithinItsCallback) {
  const auto token = std::make_shared<int>(0);
  agents_.add(
      AgentConnectionId(1),
      [this, token](const ServiceMessage&) {
        agents_.clear();
        delivered_ += token.use_count() > 1 ? 1 : 100;  // the callback itself is still there
      },
      nullptr);
  agents_.deliver(AgentConnectionId(1), Wait{"for others"});
  agents_.deliver(AgentConnectionId(1), Wait{"for others"});
  io_.run();
  EXPECT_EQ(delivered_, 1);
  EXPECT_EQ(token.use_count(), 1);
}

TEST_F(LocalAgentsTest, OnlyAgentsWithRanksAreAskedForThem) {
  add(1);
  agents_.add(
      AgentConnectionId(2), [](const ServiceMessage&) {},
      [] { return RankReport{.generation = Generation(4), .rows = {}}; });
  const auto ranks = agents_.ranks();
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0].first, AgentConnectionId(2));
  EXPECT_EQ(ranks[0].second.generation, Generation(4));
}

}  // namespace
}  // namespace ddprun
