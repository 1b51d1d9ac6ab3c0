#include "launcher/options/core/wrapped_text.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(WrappedText, BreaksBetweenWordsAndIndentsWhatFollows) {
  EXPECT_EQ(wrapped("one two three", 0, 100), "one two three");
  EXPECT_EQ(wrapped("one two three", 2, 9), "one two\n  three") << "two spaces stand in front";
  EXPECT_EQ(wrapped("one two three", 2, 8), "one\n  two\n  three");
  EXPECT_EQ(wrapped("  one \n two\t", 0, 100), "one two");
}

TEST(WrappedText, AWordIsNeverBrokenAndNoControlCharacterPasses) {
  EXPECT_EQ(wrapped("extraordinary x", 0, 4), "extraordinary\nx");
  EXPECT_EQ(wrapped("a\x1b[31mb", 0, 100), "a?[31mb");
  EXPECT_EQ(wrapped("", 4, 10), "");
}

}  // namespace
}  // namespace ddprun
