#include "rendezvous/service/core/handshake_queue.h"

#include <gmock/gmock.h>

#include <set>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing::ElementsAre;
using testing::IsEmpty;
using Step = HandshakeQueue::Step;

constexpr AgentConnectionId client(std::uint64_t number) { return AgentConnectionId(number); }

class HandshakeQueueTest : public testing::Test {
 protected:
  Step add(std::uint64_t number, const std::string& address = "a") {
    return queue_.add(address, client(number), now_, is_here());
  }
  Step complete(const std::string& address = "a") {
    return queue_.complete(address, now_, is_here());
  }
  Step serve() { return queue_.serve(now_, is_here()); }

  TimePoint now_{std::chrono::seconds(1000)};
  std::set<AgentConnectionId> gone_;

 private:
  HandshakeQueue::IsHere is_here() {
    return [this](AgentConnectionId one) { return !gone_.contains(one); };
  }
  HandshakeQueue queue_{2};
};

TEST_F(HandshakeQueueTest, AnAddressWithoutATurnWaitsAndOthersDoNot) {
  EXPECT_THAT(add(1).begin, ElementsAre(client(1)));
  EXPECT_THAT(add(2).begin, ElementsAre(client(2)));
  const Step third = add(3);
  EXPECT_THAT(third.begin, IsEmpty());
  EXPECT_EQ(third.next, now_ + HandshakeTurns::kHold);
  EXPECT_THAT(add(4, "b").begin, ElementsAre(client(4)));
}

TEST_F(HandshakeQueueTest, TheNewestGetsTheTurnOfACompleteHandshake) {
  for (std::uint64_t i = 1; i <= 4; ++i) add(i);
  EXPECT_THAT(complete("b").begin, IsEmpty());
  EXPECT_THAT(complete().begin, ElementsAre(client(4)));
  EXPECT_THAT(complete().begin, ElementsAre(client(3)));
  EXPECT_EQ(complete().next, std::nullopt) << "nothing waits";
}

TEST_F(HandshakeQueueTest, AClientThatHasLeftTakesNoTurn) {
  for (std::uint64_t i = 1; i <= 4; ++i) add(i);
  gone_.insert(client(4));
  const Step step = complete();
  EXPECT_THAT(step.gone, ElementsAre(client(4)));
  EXPECT_THAT(step.begin, ElementsAre(client(3)));
}

TEST_F(HandshakeQueueTest, OneThatHasWaitedLongEnoughIsPutOff) {
  add(1);
  now_ += milliseconds(10);
  add(2);
  add(3);
  now_ += HandshakeTurns::kHold - milliseconds(10);  // the turn of 1 ends
  EXPECT_THAT(add(4).begin, ElementsAre(client(4)));
  EXPECT_THAT(add(5).put_off, IsEmpty());
  now_ += milliseconds(10);  // 2's turn ends as the wait of 3 does: the newest, 5, gets it
  const Step step = serve();
  EXPECT_THAT(step.begin, ElementsAre(client(5)));
  EXPECT_THAT(step.put_off, ElementsAre(client(3)));
  EXPECT_EQ(step.next, std::nullopt);
}

TEST_F(HandshakeQueueTest, OfTooManyTheOldestIsPutOff) {
  for (std::uint64_t i = 1; i <= 2 + HandshakeTurns::kWaiting; ++i) {
    ASSERT_THAT(add(i).put_off, IsEmpty()) << i;
  }
  EXPECT_THAT(add(1000).put_off, ElementsAre(client(3)));
}

}  // namespace
}  // namespace ddprun
