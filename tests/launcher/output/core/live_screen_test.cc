#include "launcher/output/core/live_screen.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

#include "tests/support/screen_model.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::ScreenModel;

// LiveScreenTest: a screen of 20 x 6 characters with two sources.
class LiveScreenTest : public testing::Test {
 protected:
  LiveScreenTest() {
    for (int i : {0, 1}) {
      sources_[static_cast<std::size_t>(i)].prefix = "[" + std::to_string(i) + "] ";
      sources_[static_cast<std::size_t>(i)].order = i;
    }
  }
  void write(std::size_t who, std::string_view piece, PieceEnd end) {
    screen_.add(sources_[who], piece, end);
  }
  // Returns what the terminal shows now.
  std::vector<std::string> lines() {
    OutputBuffer bytes;
    screen_.take(bytes);
    last_ = bytes.bytes();
    model_.feed(last_);
    return model_.lines();
  }

  std::array<ConsoleSource, 2> sources_;
  LiveScreen screen_{{.columns = 20, .rows = 6}};
  ScreenModel model_{20, 6};
  std::string last_;
};

TEST_F(LiveScreenTest, LinesScrollByAboveTheStatusLine) {
  screen_.set_status("status 1");
  EXPECT_THAT(lines(), ElementsAre("status 1"));
  write(0, "one\ntwo\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[0] one", "[0] two", "status 1"));
  screen_.set_status("status 2");
  for (int i = 0; i < 8; ++i) write(1, std::to_string(i) + "\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[0] one", "[0] two", "[1] 0", "[1] 1", "[1] 2", "[1] 3",
                                   "[1] 4", "[1] 5", "[1] 6", "[1] 7", "status 2"));
}

TEST_F(LiveScreenTest, NothingIsDrawnWhenNothingHasChanged) {
  screen_.set_status("status");
  lines();
  screen_.set_status("status");
  EXPECT_FALSE(screen_.has_changed());
  lines();
  EXPECT_EQ(last_, "");
}

TEST_F(LiveScreenTest, EachBarHasARowAndBecomesALineWhenItEnds) {
  screen_.set_status("status");
  write(1, "5%\r", PieceEnd::kReturn);
  write(0, "10%\r", PieceEnd::kReturn);
  EXPECT_THAT(lines(), ElementsAre("[0] 10%", "[1] 5%", "status"));
  write(0, "20%\r", PieceEnd::kReturn);
  write(1, "a line\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[0] 20%", "[1] a line", "status"))
      << "it was written over a bar, and another bar may be below";
  write(0, "\nnext\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[0] 20%", "[0] next", "[1] a line", "status"))
      << "the newline was the rest of the bar's end";
}

TEST_F(LiveScreenTest, ABarThatBeginsWithItsReturnHasARowToo) {
  screen_.show_rest(sources_[0], "\r10%");
  EXPECT_THAT(lines(), ElementsAre("[0] 10%"));
  write(0, "\r10%", PieceEnd::kReturn);
  EXPECT_THAT(lines(), ElementsAre("[0] 10%"));
  screen_.show_rest(sources_[0], "\r");
  EXPECT_THAT(lines(), ElementsAre("[0] 10%")) << "it does not flicker";
  screen_.show_rest(sources_[0], "\r20%");
  EXPECT_THAT(lines(), ElementsAre("[0] 20%"));
  write(0, "\r20%\n", PieceEnd::kLines);
  write(1, "\r", PieceEnd::kReturn);
  EXPECT_THAT(lines(), ElementsAre("[0] 20%"));
  write(0, "\r30%", PieceEnd::kReturn);
  write(0, "\r\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[0] 20%", "[0] 30%")) << "that was its end";
}

TEST_F(LiveScreenTest, APromptIsSeenAndItsLineIsNotRepeated) {
  screen_.set_status("status");
  screen_.show_rest(sources_[1], "name? ");
  EXPECT_THAT(lines(), ElementsAre("[1] name?", "status"));
  write(1, "name? x\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[1] name? x", "status"));
}

TEST_F(LiveScreenTest, ARowIsOneRowHoweverLongItIsAndALineIsWhole) {
  screen_.set_status(std::string(50, 's'));
  screen_.show_rest(sources_[0], std::string(50, 'x'));
  lines();
  write(1, std::string(30, 'y') + "\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[1] " + std::string(16, 'y'), std::string(14, 'y'),
                                   "[0] " + std::string(16, 'x'), std::string(19, 's')));
}

TEST_F(LiveScreenTest, WhatMovesTheCursorIsTakenOutOfRowsAndColoursEndWithTheLine) {
  screen_.show_rest(sources_[0], "\x1b[2K\x1b[1A\x1b[31mred\x1b[5;5H\x07\tend");
  EXPECT_THAT(lines(), ElementsAre("[0] red     end"));
  write(1, "\x1b[32mgreen\n", PieceEnd::kLines);
  lines();
  EXPECT_THAT(last_, HasSubstr("\x1b[32mgreen\x1b[0m\n"));
}

TEST_F(LiveScreenTest, WholeLinesLoseOnlyWhatIsNoText) {
  write(0, std::string("\x00\xff\xc3(\n", 5), PieceEnd::kLines);
  lines();
  EXPECT_THAT(last_, HasSubstr("[0] \xff\xc3(\n"));
  write(0,
        "a\x1b]0;title\x07\x1b[1A\x1b[2Jb\xc2\x9b"
        "1Ac\n",
        PieceEnd::kLines);
  lines();
  EXPECT_THAT(last_, HasSubstr("[0]  b1Ac\x1b[0m")) << "the worker has cleared its own row";
}

// Draws bars as tqdm does. A refresh of the lower bar moves down, writes, and moves up again,
// each in its own write. The other rank's lines must stay complete and keep their prefix.
TEST_F(LiveScreenTest, NestedBarsStayInTheirRows) {
  screen_.set_status("status");
  write(0, "\rrun 0/2", PieceEnd::kReturn);
  for (int step = 0; step < 3; ++step) {
    const std::string bar = "\repoch " + std::to_string(step) + "/3";
    write(0, "\n", PieceEnd::kLines);
    screen_.show_rest(sources_[0], bar);
    lines();
    write(1, "line " + std::to_string(step) + "\n", PieceEnd::kLines);
    screen_.show_rest(sources_[0], bar + "\x1b[A");
    write(0, bar + "\x1b[A", PieceEnd::kReturn);
    lines();
  }
  EXPECT_THAT(lines(), ElementsAre("[1] line 0", "[1] line 1", "[1] line 2", "[0] run 0/2",
                                   "[0] epoch 2/3", "status"));
  write(0, "\n\n", PieceEnd::kLines);
  write(0, "done\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[1] line 0", "[1] line 1", "[1] line 2", "[0] run 0/2",
                                   "[0] epoch 2/3", "[0] done", "status"));
}

TEST_F(LiveScreenTest, HalfOfTheTerminalIsForWhatScrollsBy) {
  std::array<ConsoleSource, 10> many;
  LiveScreen screen({.columns = 20, .rows = 6});
  for (std::size_t i = 0; i < many.size(); ++i) {
    many[i].prefix = std::to_string(i) + " ";
    many[i].order = static_cast<int>(i);
    screen.add(many[i], "bar\r", PieceEnd::kReturn);
  }
  screen.set_status("status");
  OutputBuffer bytes;
  screen.take(bytes);
  model_.feed(bytes.bytes());
  EXPECT_THAT(model_.lines(), ElementsAre("0 bar", "1 bar", "2 bar", "status"));
}

TEST_F(LiveScreenTest, TheAreaIsErasedAndComesBack) {
  screen_.set_status("status");
  write(0, "one\n", PieceEnd::kLines);
  write(1, "10%\r", PieceEnd::kReturn);
  lines();
  screen_.hide();
  EXPECT_THAT(lines(), ElementsAre("[0] one"));
  write(0, "two\n", PieceEnd::kLines);
  EXPECT_THAT(lines(), ElementsAre("[0] one", "[0] two"));
  screen_.show();
  EXPECT_THAT(lines(), ElementsAre("[0] one", "[0] two", "[1] 10%", "status"));
}

TEST_F(LiveScreenTest, WhatStandsInTheRowOfWhoIsGoneBecomesALine) {
  screen_.set_status("status");
  write(0, "99%\r", PieceEnd::kReturn);
  screen_.show_rest(sources_[1], "last words");
  lines();
  screen_.finish(sources_[0]);
  write(1, "last words", PieceEnd::kCut);  // an unfinished line, flushed by the splitter
  screen_.finish(sources_[1]);
  EXPECT_THAT(lines(), ElementsAre("[0] 99%", "[1] last words", "status"));
}

TEST_F(LiveScreenTest, FollowsANewSize) {
  screen_.set_status("0123456789012345678901234567890");
  EXPECT_THAT(lines(), ElementsAre("0123456789012345678"));
  screen_.resize({.columns = 10, .rows = 6});
  EXPECT_THAT(lines(), ElementsAre("012345678"));
}

}  // namespace
}  // namespace ddprun
