#include "launcher/output/core/worker_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class WorkerScreenTest : public testing::Test {
 protected:
  // Feeds byte by byte unless `whole` is true, because reads of a pipe may end anywhere.
  void feed(std::string_view bytes, bool whole = false) {
    const auto commit = [this](std::string_view line) { done_.emplace_back(line); };
    if (whole) return screen_.feed(bytes, commit);
    for (std::size_t i = 0; i < bytes.size(); ++i) screen_.feed(bytes.substr(i, 1), commit);
  }
  void finish() {
    screen_.finish([this](std::string_view line) { done_.emplace_back(line); });
  }
  std::vector<std::string> rows() const { return screen_.rows(1000); }

  WorkerScreen screen_;
  std::vector<std::string> done_;
};

TEST_F(WorkerScreenTest, PlainLinesAreGivenUpAtTheirEnd) {
  feed("one\ntwo\r\n\nthr");
  EXPECT_THAT(done_, ElementsAre("one", "two", ""));
  EXPECT_THAT(rows(), ElementsAre("thr"));
  finish();
  EXPECT_THAT(done_, ElementsAre("one", "two", "", "thr"));
  EXPECT_TRUE(screen_.is_empty());
}

TEST_F(WorkerScreenTest, ABarIsOverwrittenFromTheLeft) {
  feed("\r 10%\r 20%\r3");
  EXPECT_THAT(rows(), ElementsAre("320%"));
  feed("\x1b[K");
  EXPECT_THAT(rows(), ElementsAre("3"));
  feed("\r\x1b[2Kx\by");
  EXPECT_THAT(rows(), ElementsAre("y"));
}

// These are tqdm's cursor movements for two and three bars. The last bar closes and leaves no
// trace.
TEST_F(WorkerScreenTest, NestedBarsKeepTheirRows) {
  feed("\rrun 0/2");
  feed("\n\repoch 0/3\x1b[A");
  feed("\n\n\rbatch 0/4\x1b[A\x1b[A");
  feed("\n\n\rbatch 1/4\x1b[A\x1b[A");
  EXPECT_THAT(rows(), ElementsAre("run 0/2", "epoch 0/3", "batch 1/4"));
  feed("\n\n\r         \r\x1b[A\x1b[A");
  feed("\n\repoch 1/3\x1b[A\rrun 1/2");
  EXPECT_THAT(rows(), ElementsAre("run 1/2", "epoch 1/3"));
  EXPECT_THAT(done_, IsEmpty());
  finish();
  EXPECT_THAT(done_, ElementsAre("run 1/2", "epoch 1/3"));
}

TEST_F(WorkerScreenTest, BarsOneAfterTheOtherBecomeLines) {
  feed("\rfirst 1\rfirst 2\n");
  EXPECT_THAT(rows(), ElementsAre("first 2")) << "one below it may go up again";
  feed("\rsecond 1\rsecond 2");
  EXPECT_THAT(done_, ElementsAre("first 2"));
  feed("\nplain\n");
  EXPECT_THAT(done_, ElementsAre("first 2", "second 2", "plain"));
  EXPECT_TRUE(screen_.is_empty());
}

TEST_F(WorkerScreenTest, APlainLineBelowAllEndsTheBars) {
  feed("\ra\n\rb\x1b[A\n\ndone\nmore\n");
  EXPECT_THAT(done_, ElementsAre("a", "b", "done", "more"));
  EXPECT_TRUE(screen_.is_empty()) << "it no longer goes up";
}

// rich draws its live displays like this.
TEST_F(WorkerScreenTest, AFrameThatIsDrawnOverReplacesTheOneBefore) {
  feed("\rone 0\r\ntwo 0");
  for (const char* n : {"1", "2", "3"}) {
    feed("\r\x1b[2K\x1b[1A\x1b[2K" + std::string("one ") + n + "\r\ntwo " + n);
  }
  EXPECT_THAT(rows(), ElementsAre("one 3", "two 3"));
  EXPECT_THAT(done_, IsEmpty());
}

TEST_F(WorkerScreenTest, OnlyColoursArePassedOn) {
  feed("\x1b[31mred\x1b[0m \x1b]0;title\x07\x1b[?25l\x1b[5;5H\x1b(B\x1bM\x1bP1q\x1b\\end\n");
  EXPECT_THAT(done_, ElementsAre("\x1b[31mred\x1b[0m end"));
  feed("a\x1b]8;;unfinished\nb\n");
  EXPECT_THAT(done_, ElementsAre(testing::_, "a", "b"));
}

TEST_F(WorkerScreenTest, CharactersMayComeInPiecesAndBeBroken) {
  feed(
      "\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80\n\xe2\x82\n\xff\n\xc2\x9b"
      "2Jx\n");
  EXPECT_THAT(done_,
              ElementsAre("\xc3\xa4\xe2\x82\xac\xf0\x9f\x98\x80", "\xe2\x82", "\xff", "2Jx"));
}

TEST_F(WorkerScreenTest, WhateverComesTheModelStaysSmall) {
  for (int i = 0; i < 1000; ++i)
    feed("\rbar\n\x1b[99A\x1b[99B\x1b[9999C\x1b[38;5;" + std::to_string(i) + "m.", true);
  EXPECT_LE(rows().size(), WorkerScreen::kMostRows);
  feed("\x1b[" + std::string(10000, '1'), true);
  feed("Aend", true);
  finish();
  EXPECT_THAT(done_.back(), testing::HasSubstr("end"));
}

TEST(IsPlainLine, TextTabsAndColours) {
  EXPECT_TRUE(is_plain_line("a\tb \x1b[1;31mc\x1b[m \xff"));
  for (const char* line : {"a\rb", "\x1b[A", "\x1b[2K", "\x1b]0;x\x07", "\x08",
                           "\xc2\x9b"
                           "A"}) {
    EXPECT_FALSE(is_plain_line(line)) << line;
  }
}

}  // namespace
}  // namespace ddprun
