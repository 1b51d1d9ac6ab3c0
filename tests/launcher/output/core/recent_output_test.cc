#include "launcher/output/core/recent_output.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(RecentOutput, TellsTheLastLines) {
  RecentOutput output;
  output.add("one\ntwo\nth");
  EXPECT_EQ(output.last_lines(2), "two\nth");
  EXPECT_EQ(output.last_lines(1), "th");
  EXPECT_EQ(output.last_lines(100), "one\ntwo\nth");
  EXPECT_EQ(output.last_lines(0), "");
  output.add("ree\n");
  EXPECT_EQ(output.last_lines(1), "three\n");
}

TEST(RecentOutput, IsBoundedAndBeginsWithAWholeLine) {
  RecentOutput output;
  std::string all;
  for (int i = 0; i < 20'000; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    output.add(line);
    all += line;
  }
  EXPECT_LE(output.last_lines(100'000).size(), 2 * RecentOutput::kKept);
  EXPECT_GT(output.last_lines(100'000).size(), RecentOutput::kKept / 2);
  EXPECT_TRUE(output.last_lines(100'000).starts_with("line "));
  EXPECT_TRUE(all.ends_with(output.last_lines(100'000)));
  // Adding everything at once gives the same end.
  RecentOutput large;
  large.add(all);
  EXPECT_EQ(large.last_lines(50), output.last_lines(50));
}

TEST(RecentOutput, ALineWithoutEndThatIsLongerThanWhatIsKeptIsNotShownInPart) {
  RecentOutput output;
  output.add(std::string(3 * RecentOutput::kKept, 'x'));
  output.add("\nnext\n");
  EXPECT_EQ(output.last_lines(10), "next\n");
}

TEST(RecentOutput, WhoFollowsGetsWhatComesFromThenOn) {
  RecentOutput output;
  std::string seen;
  output.add("before\n");
  output.follow([&](std::string_view bytes) { seen += bytes; });
  output.add("now");
  output.end_line();
  output.follow(nullptr);
  output.add("later");
  EXPECT_EQ(seen, "now");
  EXPECT_EQ(output.last_lines(3), "before\nnow\nlater");
}

TEST(WholeLines, GivesLinesWhenTheyAreComplete) {
  WholeLines lines;
  EXPECT_EQ(lines.take("a"), "");
  EXPECT_EQ(lines.take("b\nc\nd"), "ab\nc\n");
  EXPECT_EQ(lines.take("\r"), "d\r") << "progress bars draw themselves so";
  EXPECT_EQ(lines.flush(), "");
  lines.take("rest");
  EXPECT_EQ(lines.flush(), "rest");
}

TEST(WholeLines, CutsALineThatNeverEnds) {
  WholeLines lines;
  const std::string text(WholeLines::kLongestRest + 1, 'x');
  EXPECT_EQ(lines.take(text), text);
}

}  // namespace
}  // namespace ddprun
