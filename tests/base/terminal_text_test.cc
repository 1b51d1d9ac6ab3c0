#include "base/terminal_text.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(TerminalText, ColoursAndTabsStayAndEndWithTheLine) {
  EXPECT_EQ(terminal_line("a\t\x1b[1;31mb\x1b[38:5:1mc"), "a\t\x1b[1;31mb\x1b[38:5:1mc\x1b[0m");
  EXPECT_EQ(terminal_line("\xc3\xa4 \xff"), "\xc3\xa4 \xff");
}

TEST(TerminalText, WhatMovesTheCursorOrChangesTheTerminalIsShownInstead) {
  EXPECT_EQ(terminal_line("\x1b[2J\x1b[1Ax\x1b]0;t\x07"), "?[2J?[1Ax?]0;t?");
  EXPECT_EQ(terminal_line("a\nb\r\x08"), "a?b??");
  EXPECT_EQ(terminal_line("\xc2\x9b"
                          "31m"),
            "?31m")
      << "a control character of Unicode";
  EXPECT_EQ(terminal_line("\x1b["), "?[");
  EXPECT_EQ(terminal_line("\x1b[?25lm"), "?[?25lm");
}

TEST(TerminalText, WithoutCursorMovesLinesAndColoursStay) {
  EXPECT_EQ(without_cursor_moves("a\r\n\t\x1b[31mb\x1b[m\x1b[2A\x1b[?25lc\x1b]0;t\x07"
                                 "d\x1b(B\x1bMe\x08"),
            "a\r\n\t\x1b[31mb\x1b[mcde");
  EXPECT_EQ(without_cursor_moves("\xc2\x9b"
                                 "1A\xc3\xa4\x1b["),
            "1A\xc3\xa4");
  EXPECT_EQ(without_cursor_moves("\x1b]8;;x\ny"), "\ny");
}

}  // namespace
}  // namespace ddprun
