#include "rendezvous/auth/core/handshake_turns.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class HandshakeTurnsTest : public testing::Test {
 protected:
  void take_all(const std::string& address) {
    for (std::size_t i = 0; i < HandshakeTurns::kTurns; ++i) {
      ASSERT_TRUE(turns_.begin(address, now_)) << i;
    }
  }
  HandshakeTurns turns_;
  TimePoint now_{seconds(1000)};
};

TEST_F(HandshakeTurnsTest, AbandonedHandshakesKeepOthersOfTheAddressOutForAMoment) {
  take_all("a");
  EXPECT_FALSE(turns_.begin("a", now_));
  EXPECT_TRUE(turns_.begin("b", now_));
  EXPECT_EQ(turns_.free_at("a", now_), now_ + HandshakeTurns::kHold);
  now_ += HandshakeTurns::kHold - milliseconds(1);
  EXPECT_FALSE(turns_.begin("a", now_));
  now_ += milliseconds(1);
  EXPECT_EQ(turns_.free_at("a", now_), now_);
  EXPECT_TRUE(turns_.begin("a", now_));
}

TEST_F(HandshakeTurnsTest, CompleteHandshakesAreNotBounded) {
  for (std::size_t i = 0; i < 10 * HandshakeTurns::kTurns; ++i) {
    ASSERT_TRUE(turns_.begin("a", now_)) << i;
    turns_.complete("a");
  }
  EXPECT_EQ(turns_.addresses(), 0u);
}

TEST_F(HandshakeTurnsTest, AddressesThatWereQuietAreForgotten) {
  for (int i = 0; i < 5000; ++i) {
    EXPECT_TRUE(turns_.begin("peer" + std::to_string(i), now_));
    now_ += milliseconds(10);
  }
  EXPECT_LE(turns_.addresses(), 1025u);
}

}  // namespace
}  // namespace ddprun
