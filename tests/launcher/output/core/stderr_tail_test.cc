#include "launcher/output/core/stderr_tail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;

TEST(StderrTail, KeepsLinesWithoutTheirEndsAndNoEmptyOnesForEveryChunking) {
  const std::string text = "one\n\n 10%\r 20%\r\r\nthree\r\nfour";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    StderrTail tail;
    for (std::size_t at = 0; at < text.size(); at += size) tail.add(text.substr(at, size));
    EXPECT_THAT(tail.lines(), ElementsAre("one", " 10%", " 20%", "three")) << "the last may go on";
    tail.finish();
    EXPECT_THAT(tail.lines(), ElementsAre("one", " 10%", " 20%", "three", "four"));
  }
}

TEST(StderrTail, KeepsTheLastLinesAndTheBeginningOfALongOne) {
  StderrTail tail;
  for (std::size_t i = 0; i < kMaxTailLines + 3; ++i) tail.add(std::to_string(i) + "\n");
  tail.add(std::string(kMaxTailLineBytes, 'x'));
  tail.add("xy\n");
  ASSERT_EQ(tail.lines().size(), kMaxTailLines);
  EXPECT_EQ(tail.lines().front(), "4");
  EXPECT_EQ(tail.lines().back(),
            clipped(std::string(kMaxTailLineBytes + 1, 'x'), kMaxTailLineBytes));
}

TEST(StderrTail, OfMuchAtOnceIsItsEnd) {
  StderrTail tail;
  tail.add("old\nbegun");
  std::string much;
  for (int i = 0; i < 5000; ++i) much += "line " + std::to_string(i) + "\n\n";
  tail.add(much + "end");
  tail.finish();
  ASSERT_EQ(tail.lines().size(), kMaxTailLines);
  EXPECT_EQ(tail.lines().front(), "line 4981");
  EXPECT_EQ(tail.lines().back(), "end");
}

}  // namespace
}  // namespace ddprun
