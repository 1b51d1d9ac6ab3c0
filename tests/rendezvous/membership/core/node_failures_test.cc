#include "rendezvous/membership/core/node_failures.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(NodeFailures, CountsEachHostByItself) {
  NodeFailures failures;
  EXPECT_EQ(failures.of("a"), 0);
  EXPECT_EQ(failures.blame("a"), 1);
  EXPECT_EQ(failures.blame("b"), 1);
  EXPECT_EQ(failures.blame("a"), 2);
  EXPECT_EQ(failures.of("a"), 2);
  EXPECT_EQ(failures.of("b"), 1);
}

TEST(NodeFailures, GoesOnWithTheCountsOfAnEarlierLife) {
  NodeFailures before;
  before.blame("a");
  before.blame("a");
  NodeFailures after(before.counts());
  EXPECT_EQ(after.blame("a"), 3);
}

TEST(NodeFailures, IsBoundedAndKeepsThoseThatFailMost) {
  NodeFailures failures;
  failures.blame("broken");
  failures.blame("broken");
  for (std::size_t i = 0; i < NodeFailures::kHostsKept * 2; ++i) {
    failures.blame("host" + std::to_string(i));
  }
  EXPECT_EQ(failures.counts().size(), NodeFailures::kHostsKept);
  EXPECT_EQ(failures.of("broken"), 2);
}

}  // namespace
}  // namespace ddprun
