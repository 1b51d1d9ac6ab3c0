#include "base/enum_names.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

enum class Colour { kRed, kBlue, kNone };
constexpr EnumNames<Colour, 2> kColourWords{{{Colour::kRed, "red"}, {Colour::kBlue, "blue"}}};

TEST(EnumNames, LeadFromValueToWordAndBack) {
  EXPECT_EQ(enum_name(kColourWords, Colour::kBlue), "blue");
  EXPECT_EQ(parse_enum(kColourWords, "red"), Colour::kRed);
  for (const char* unknown : {"", "Red", "green", "reds"}) {
    EXPECT_EQ(parse_enum(kColourWords, unknown), std::nullopt) << unknown;
  }
}

TEST(WordsDeathTest, AnEnumeratorWithoutAWordIsABug) {
  EXPECT_DEATH(enum_name(kColourWords, Colour::kNone), "every enumerator has a word");
}

}  // namespace
}  // namespace ddprun
