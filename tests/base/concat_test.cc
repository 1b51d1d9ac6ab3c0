#include "base/concat.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/joined.h"

namespace ddprun {
namespace {

TEST(Concat, WritesTextsAndNumbersOneAfterTheOther) {
  const std::string name = "tensor";
  EXPECT_EQ(concat(name, "[", std::size_t{3}, "] is of ", std::string_view("rank "), -1, ", not ",
                   std::int64_t{1} << 40),
            "tensor[3] is of rank -1, not 1099511627776");
  EXPECT_EQ(concat(Rank(3), " waits for ", std::chrono::seconds(2)), "3 waits for 2.0 s");
}

TEST(Joined, PutsTheSeparatorOnlyBetweenTexts) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(joined(Texts{}), "");
  EXPECT_EQ(joined(Texts{"a"}), "a");
  EXPECT_EQ(joined(Texts{"", "a", ""}, "; "), "; a; ");
}

TEST(Joined, PutsAndBeforeTheLastText) {
  EXPECT_EQ(joined_with_and({}), "");
  EXPECT_EQ(joined_with_and({"a"}), "a");
  EXPECT_EQ(joined_with_and({"a", "b"}), "a and b");
  EXPECT_EQ(joined_with_and({"a", "b", "c"}), "a, b and c");
}

TEST(Joined, CountsTheTextsThatAreNotShown) {
  EXPECT_EQ(joined_up_to({"a", "b", "c"}, 3), "a, b, c");
  EXPECT_EQ(joined_up_to({"a", "b", "c"}, 2), "a, b and 1 more");
}

}  // namespace
}  // namespace ddprun
