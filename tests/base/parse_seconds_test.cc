#include "base/parse_seconds.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(ParseSeconds, TakesFractions) {
  EXPECT_EQ(*parse_seconds("30"), std::chrono::seconds(30));
  EXPECT_EQ(*parse_seconds("0.5"), std::chrono::milliseconds(500));
}

TEST(ParseSeconds, RefusesWhatIsNoTime) {
  for (const char* bad : {"", "-1", "1s", "nan", "inf", "1e99"})
    EXPECT_FALSE(parse_seconds(bad)) << bad;
}

}  // namespace
}  // namespace ddprun
