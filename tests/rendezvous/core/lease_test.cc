#include "rendezvous/core/lease.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(ParseLease, TakesSecondsThatALeaseCanHave) {
  EXPECT_EQ(*parse_lease("0.5"), std::chrono::milliseconds(500));
  EXPECT_EQ(*parse_lease("3600"), std::chrono::seconds(3600));
  for (const char* bad : {"0.4", "0", "3601", "x", ""}) EXPECT_FALSE(parse_lease(bad)) << bad;
}

}  // namespace
}  // namespace ddprun
