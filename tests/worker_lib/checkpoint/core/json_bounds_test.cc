#include "worker_lib/checkpoint/core/json_bounds.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

constexpr JsonBounds kBounds{.depth = 3, .values = 6};

TEST(JsonBounds, AreMetByWhatIsWithinThem) {
  EXPECT_FALSE(beyond_bounds("", kBounds));
  EXPECT_FALSE(beyond_bounds("[[[1]]]", kBounds));
  EXPECT_FALSE(beyond_bounds(R"({"a":[1,2],"b":{}})", kBounds));
  EXPECT_FALSE(beyond_bounds("]]]}}}[[[", kBounds)) << "the syntax is the parser's to check";
}

TEST(JsonBounds, NameTheDepthThatIsExceeded) {
  EXPECT_EQ(beyond_bounds("[[[[1]]]]", kBounds), "it is nested deeper than 3 levels");
  EXPECT_EQ(beyond_bounds(R"({"a":{"b":[{)", kBounds), "it is nested deeper than 3 levels");
}

TEST(JsonBounds, NameTheNumberOfValuesThatIsExceeded) {
  EXPECT_EQ(beyond_bounds("[1,2,3,4,5,6,7]", kBounds), "it holds more than 6 values");
  EXPECT_EQ(beyond_bounds("[[],[],[],[],[]]", kBounds), "it holds more than 6 values");
}

TEST(JsonBounds, BracketsAndCommasInTextDoNotCount) {
  EXPECT_FALSE(beyond_bounds(R"(["[[[[[[[[", ",,,,,,,,,", "\"[[[[[\\"])", kBounds));
  EXPECT_TRUE(beyond_bounds(R"(["\\",[[[[)", kBounds)) << "the text ends after two backslashes";
  EXPECT_FALSE(beyond_bounds("\"\\", kBounds)) << "a text that is cut off";
}

}  // namespace
}  // namespace ddprun
