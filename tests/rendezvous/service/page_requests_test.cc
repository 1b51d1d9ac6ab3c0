#include "rendezvous/service/page_requests.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

class PageRequestsTest : public testing::Test {
 protected:
  bool begin(int id, bool is_look = false) {
    return requests_.begin(AgentConnectionId(id), is_look,
                           [this](const HttpPage& page) { statuses_.push_back(page.status); });
  }

  boost::asio::io_context io_{1};
  std::vector<AgentConnectionId> wanting_;
  std::vector<AgentConnectionId> ended_;
  std::vector<int> statuses_;
  PageRequests requests_{io_,
                         {.wants_more = [this](AgentConnectionId id) { wanting_.push_back(id); },
                          .ended = [this](AgentConnectionId id) { ended_.push_back(id); }}};
};

TEST_F(PageRequestsTest, OneMoreThanTheMostIsRefused) {
  const int most = static_cast<int>(PageRequests::kMost);
  for (int id = 1; id <= most; ++id) EXPECT_TRUE(begin(id));
  EXPECT_TRUE(statuses_.empty());
  EXPECT_FALSE(begin(most + 1));
  EXPECT_EQ(statuses_, std::vector{503});
  EXPECT_FALSE(requests_.contains(AgentConnectionId(most + 1)));
  EXPECT_TRUE(ended_.empty()) << "the table has never known of it";
}

TEST_F(PageRequestsTest, WhatPagesAskByThemselvesLeavesRoomForButtons) {
  const int looks = static_cast<int>(PageRequests::kMostLooks);
  const int most = static_cast<int>(PageRequests::kMost);
  for (int id = 1; id <= looks; ++id) EXPECT_TRUE(begin(id, true));
  EXPECT_FALSE(begin(100, true));
  for (int id = looks + 1; id <= most; ++id) EXPECT_TRUE(begin(id));
  EXPECT_FALSE(begin(100));
  requests_.take(AgentConnectionId(1), Answer{.done = true});
  EXPECT_TRUE(begin(100, true));
}

TEST_F(PageRequestsTest, AnAnswerThatIsNotTheLastOneWantsMore) {
  ASSERT_TRUE(begin(1));
  requests_.take(AgentConnectionId(1), Answer{.more = true});
  EXPECT_EQ(wanting_, std::vector{AgentConnectionId(1)});
  EXPECT_TRUE(statuses_.empty());
  requests_.take(AgentConnectionId(1), Answer{.done = true});
  EXPECT_EQ(statuses_, std::vector{200});
  EXPECT_EQ(ended_, std::vector{AgentConnectionId(1)});
}

TEST_F(PageRequestsTest, AServiceThatIsSilentHasNoAnswer) {
  ASSERT_TRUE(begin(1));
  requests_.take(AgentConnectionId(1), Silence{"the service is stopping"});
  EXPECT_EQ(statuses_, std::vector{503});
  EXPECT_FALSE(requests_.contains(AgentConnectionId(1)));
}

TEST_F(PageRequestsTest, EachIsAnsweredAtTheEndUnlessItIsDropped) {
  ASSERT_TRUE(begin(1));
  ASSERT_TRUE(begin(2));
  requests_.end_all(HttpPage{.status = 418});
  EXPECT_EQ(statuses_, (std::vector{418, 418}));
  EXPECT_EQ(ended_.size(), 2u);
  ASSERT_TRUE(begin(3));
  requests_.close();
  EXPECT_FALSE(requests_.contains(AgentConnectionId(3)));
  io_.run();  // no timer is left that would call back
  EXPECT_EQ(statuses_.size(), 2u);
}

}  // namespace
}  // namespace ddprun
