#include "rendezvous/net/core/line_budget.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

TEST(LineBudget, LetsABurstPassAndCountsTheRest) {
  LineBudget budget(2, 10s);
  const TimePoint start(100s);
  EXPECT_EQ(budget.admit(start), 0u);
  EXPECT_EQ(budget.admit(start + 1s), 0u);
  EXPECT_EQ(budget.admit(start + 2s), std::nullopt);
  EXPECT_EQ(budget.admit(start + 9s), std::nullopt);
  EXPECT_EQ(budget.admit(start + 10s), 2u);
  EXPECT_EQ(budget.admit(start + 10s), 0u);
  EXPECT_EQ(budget.admit(start + 10s), std::nullopt);
  EXPECT_EQ(budget.admit(start + 100s), 1u);
}

}  // namespace
}  // namespace ddprun
