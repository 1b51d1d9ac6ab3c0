// Tests Outbox: messages wait until the change that they report is durable; then they leave.
#include "rendezvous/membership/core/outbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;

class OutboxTest : public testing::Test {
 protected:
  static Outbox::Send directive(std::uint64_t connection, const std::string& reason,
                                std::uint64_t after) {
    return {AgentConnectionId(connection), Wait{reason}, after};
  }
  bool leaves(Outbox::Send send) { return box_.put(std::move(send)).has_value(); }
  // Returns what leaves once change `number` is durable, as "1:reason" for a Wait or
  // "1:welcome".
  std::vector<std::string> taken(std::uint64_t number) {
    std::vector<std::string> words;
    for (const Outbox::Send& send : box_.take_durable(number)) {
      const Wait* wait = std::get_if<Wait>(&send.message);
      words.push_back(to_text(send.connection) + ":" + (wait ? wait->reason : "welcome"));
    }
    return words;
  }
  Outbox box_;
};

TEST_F(OutboxTest, WhatTellsOfNothingNewLeavesAtOnce) {
  EXPECT_TRUE(leaves({AgentConnectionId(1), HeartbeatAck{1}, 0}));
  EXPECT_FALSE(leaves(directive(1, "a", 3)));
  EXPECT_THAT(taken(3), ElementsAre("1:a"));
  EXPECT_EQ(box_.durable(), 3u);
  EXPECT_TRUE(leaves(directive(1, "b", 3)));
}

TEST_F(OutboxTest, TheRestWaitsForItsChange) {
  leaves(directive(1, "a", 1));
  leaves(directive(2, "b", 3));
  EXPECT_THAT(taken(2), ElementsAre("1:a"));
  EXPECT_THAT(taken(2), ElementsAre());
  EXPECT_THAT(taken(3), ElementsAre("2:b"));
}

TEST_F(OutboxTest, OnlyTheNewestDirectiveWaitsBehindItsWelcome) {
  leaves({AgentConnectionId(1), Welcome{}, 1});
  leaves(directive(1, "old", 2));
  leaves(directive(1, "new", 4));
  EXPECT_THAT(taken(2), ElementsAre("1:welcome"));
  EXPECT_THAT(taken(9), ElementsAre("1:new"));
}

TEST_F(OutboxTest, ForgetsAConnection) {
  leaves(directive(1, "a", 1));
  leaves(directive(2, "b", 1));
  box_.forget(AgentConnectionId(1));
  EXPECT_THAT(taken(1), ElementsAre("2:b"));
}

TEST_F(OutboxTest, NoDirectiveGivesWayToAnAnswerNorTheOtherWayRound) {
  leaves(directive(1, "old", 2));
  leaves({AgentConnectionId(1), Answer{.number = 1}, 2});
  leaves(directive(1, "older", 3));
  leaves(directive(1, "new", 3));
  const std::vector<Outbox::Send> taken = box_.take_durable(3);
  ASSERT_EQ(taken.size(), 3u);
  EXPECT_TRUE(std::holds_alternative<Wait>(taken[0].message));
  EXPECT_TRUE(std::holds_alternative<Answer>(taken[1].message));
  EXPECT_EQ(std::get<Wait>(taken[2].message).reason, "new");
}

TEST_F(OutboxTest, ASignalForWorkersDoesNotOvertakeWhatStartsThem) {
  const auto signal = [](int number) {
    return Outbox::Send{AgentConnectionId(1), ForwardSignal{.signal = number}, 0};
  };
  EXPECT_TRUE(leaves(signal(1))) << "nothing waits";
  EXPECT_FALSE(leaves(directive(1, "old", 2)));
  EXPECT_FALSE(leaves(signal(2)));
  EXPECT_FALSE(leaves(directive(1, "new", 3)));
  for (int i = 0; i < 100; ++i) EXPECT_FALSE(leaves(signal(3)));
  EXPECT_TRUE(box_.take_durable(2).empty());
  const std::vector<Outbox::Send> taken = box_.take_durable(3);
  ASSERT_EQ(taken.size(), 1 + Outbox::kPassOns);
  EXPECT_EQ(std::get<Wait>(taken[0].message).reason, "new");
  EXPECT_EQ(std::get<ForwardSignal>(taken[1].message).signal, 2);
  EXPECT_TRUE(leaves(signal(4))) << "nothing waits any more";
}

TEST_F(OutboxTest, FewAnswersWait) {
  for (int i = 0; i < 100; ++i) leaves({AgentConnectionId(1), Answer{.number = 1}, 2});
  EXPECT_EQ(box_.take_durable(2).size(), Outbox::kAnswers);
}

TEST_F(OutboxTest, WhileItHoldsMessagesBackHeartbeatsGetNoAnswer) {
  box_.hold(true);
  EXPECT_FALSE(leaves({AgentConnectionId(1), HeartbeatAck{1}, 0}));
  EXPECT_FALSE(leaves({AgentConnectionId(1), Welcome{}, 0}));
  EXPECT_FALSE(leaves(directive(1, "old", 0)));
  EXPECT_FALSE(leaves(directive(1, "new", 2)));
  EXPECT_THAT(taken(2), ElementsAre());
  box_.hold(false);
  EXPECT_THAT(taken(2), ElementsAre("1:welcome", "1:new"));
  EXPECT_TRUE(leaves({AgentConnectionId(1), HeartbeatAck{2}, 0}));
}

}  // namespace
}  // namespace ddprun
