#include "launcher/top/core/printable_text.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(PrintableText, HasNoByteThatMovesTheCursor) {
  EXPECT_EQ(printable_text("a\x1b[2J\x1b]0;t\a\r\n\t\x7f"), "a?[2J?]0;t?????");
  EXPECT_EQ(printable_text("\xc2\x9b"
                           "31m"),
            "?31m")
      << "U+009B is CSI";
  EXPECT_EQ(printable_text("\x9b"
                           "31m"),
            "?31m")
      << "so is that byte, on old terminals";
  EXPECT_EQ(printable_text("a\xff\xc3"), "a??");
  EXPECT_EQ(printable_text("Zürich 東京"), "Zürich 東京");
}

TEST(PrintableText, IsCutBetweenCharacters) {
  EXPECT_EQ(width_of("Zürich"), 6u);
  EXPECT_EQ(cut_to("Zürich", 6), "Zürich");
  EXPECT_EQ(cut_to("Zürich", 3), "Zü~");
  EXPECT_EQ(cut_to("Zürich", 2), "Z~");
  EXPECT_EQ(cut_to("Zürich", 1), "~");
  EXPECT_EQ(cut_to("Zürich", 0), "");
}

}  // namespace
}  // namespace ddprun
