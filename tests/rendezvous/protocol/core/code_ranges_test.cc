#include "rendezvous/protocol/core/code_ranges.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(CodeRanges, AreReadAsTheyAreWritten) {
  for (const char* text : {"", "2", "2,64-78", "1-255", "3,3,3"}) {
    const Result<CodeRanges> ranges = parse_code_ranges(text);
    ASSERT_TRUE(ranges) << text;
    EXPECT_EQ(to_text(*ranges), text);
  }
}

TEST(CodeRanges, HoldBothEndsAndNothingBeside) {
  const CodeRanges ranges = *parse_code_ranges("2,64-78");
  for (const int code : {2, 64, 70, 78}) EXPECT_TRUE(contains(ranges, code)) << code;
  for (const int code : {0, 1, 3, 63, 79, 137}) EXPECT_FALSE(contains(ranges, code)) << code;
  EXPECT_FALSE(contains({}, 2));
}

TEST(CodeRanges, WhatIsNoneIsNamed) {
  for (const char* text :
       {"0", "256", "-1", "x", "2,", ",2", "3-2", "2-", "64-300", "1 2", "2;3"}) {
    const Result<CodeRanges> ranges = parse_code_ranges(text);
    // A comma at the end is ignored.
    EXPECT_EQ(static_cast<bool>(ranges), std::string_view(text) == "2,") << text;
  }
  EXPECT_EQ(parse_code_ranges("2,x").error().cause,
            "invalid value 'x' (expected an exit code from 1 to 255, or a range such as 64-78)");
  std::string many;
  for (std::size_t i = 0; i <= kMaxCodeRanges; ++i) many += "1,";
  EXPECT_FALSE(parse_code_ranges(many));
}

}  // namespace
}  // namespace ddprun
