#include "base/words.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

enum class Colour { kRed, kBlue, kNone };
constexpr Words<Colour, 2> kColourWords{{{Colour::kRed, "red"}, {Colour::kBlue, "blue"}}};

TEST(Words, LeadFromValueToWordAndBack) {
  EXPECT_EQ(word_of(kColourWords, Colour::kBlue), "blue");
  EXPECT_EQ(meant_by(kColourWords, "red"), Colour::kRed);
  for (const char* unknown : {"", "Red", "green", "reds"}) {
    EXPECT_EQ(meant_by(kColourWords, unknown), std::nullopt) << unknown;
  }
}

TEST(WordsDeathTest, AnEnumeratorWithoutAWordIsABug) {
  EXPECT_DEATH(word_of(kColourWords, Colour::kNone), "every enumerator has a word");
}

}  // namespace
}  // namespace ddprun
