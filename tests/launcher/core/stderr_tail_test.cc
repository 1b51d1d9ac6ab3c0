#include "launcher/core/stderr_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;

TEST(StderrTail, KeepsLinesWithoutTheirEndsAndNoEmptyOnes) {
  StderrTail tail;
  for (const char* piece : {"one\n", "\n", "two\r", "\r\n", "three\r\n", "four"}) tail.add(piece);
  EXPECT_THAT(tail.lines(), ElementsAre("one", "two", "three", "four"));
}

TEST(StderrTail, KeepsTheLastLinesAndTheBeginningOfALongOne) {
  StderrTail tail;
  for (std::size_t i = 0; i < kMaxTailLines + 3; ++i) tail.add(std::to_string(i));
  tail.add(std::string(kMaxTailLineBytes + 1, 'x'));
  ASSERT_EQ(tail.lines().size(), kMaxTailLines);
  EXPECT_EQ(tail.lines().front(), "4");
  EXPECT_EQ(tail.lines().back(),
            clipped(std::string(kMaxTailLineBytes + 1, 'x'), kMaxTailLineBytes));
}

}  // namespace
}  // namespace ddprun
