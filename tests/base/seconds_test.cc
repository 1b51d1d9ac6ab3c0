#include "base/seconds.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(Seconds, AreReadWithAFraction) {
  EXPECT_EQ(*parse_seconds("30"), std::chrono::seconds(30));
  EXPECT_EQ(*parse_seconds("0.5"), std::chrono::milliseconds(500));
}

TEST(Seconds, WhatIsNoTimeIsRefused) {
  for (const char* bad : {"", "-1", "1s", "nan", "inf", "1e99"})
    EXPECT_FALSE(parse_seconds(bad)) << bad;
  EXPECT_EQ(parse_seconds("1h").error().message(),
            "invalid value '1h' (expected seconds, such as 30 or 0.5)");
}

TEST(Seconds, AreSaidAsTheyAreRead) {
  for (const char* text : {"0", "7.5", "30", "0.05"})
    EXPECT_EQ(in_seconds(*parse_seconds(text)), text);
  EXPECT_EQ(*parse_seconds(in_seconds(kMaxTime)), kMaxTime);
}

}  // namespace
}  // namespace ddprun
