#include "launcher/core/line_splitter.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

using Pieces = std::vector<std::string>;

// Feeds `text` in chunks of `size` and returns the pieces, the flushed rest included.
Pieces split(const std::string& text, std::size_t size) {
  LineSplitter splitter;
  Pieces pieces;
  const auto sink = [&](std::string_view piece) { pieces.emplace_back(piece); };
  for (std::size_t at = 0; at < text.size(); at += size) {
    splitter.feed(std::string_view(text).substr(at, size), sink);
  }
  splitter.flush(sink);
  return pieces;
}

TEST(LineSplitter, GivesTheSamePiecesForEveryChunking) {
  const std::string text = "one\ntwo\r\n\n10%\r20%\rdone\nrest";
  const Pieces expected{"one\n", "two\r\n", "\n", "10%\r", "20%\r", "done\n", "rest"};
  for (std::size_t size = 1; size <= text.size(); ++size) {
    EXPECT_EQ(split(text, size), expected) << "chunks of " << size;
  }
}

TEST(LineSplitter, KeepsAnUnfinishedLineUntilItsEnd) {
  LineSplitter splitter;
  Pieces pieces;
  const auto sink = [&](std::string_view piece) { pieces.emplace_back(piece); };
  splitter.feed("ab", sink);
  EXPECT_TRUE(pieces.empty());
  splitter.feed("c\nd", sink);
  EXPECT_EQ(pieces, Pieces{"abc\n"});
}

TEST(LineSplitter, PassesBytesThatAreNoText) {
  const std::string bytes("\x00\xff\xfe\n\x80", 5);
  EXPECT_EQ(split(bytes, 2), (Pieces{std::string("\x00\xff\xfe\n", 4), "\x80"}));
}

TEST(LineSplitter, CutsALineThatNeverEndsSoThatMemoryStaysBounded) {
  const std::string text(LineSplitter::kMaxPiece * 2 + 5, 'x');
  for (const std::size_t size : {std::size_t{1000}, text.size()}) {
    const Pieces pieces = split(text, size);
    ASSERT_EQ(pieces.size(), 3u);
    EXPECT_EQ(pieces[0].size(), LineSplitter::kMaxPiece);
    EXPECT_EQ(pieces[2].size(), 5u);
  }
}

TEST(LineSplitter, LosesAndAddsNothingForRandomBytesAndChunks) {
  Rng rng(3);
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (std::uint64_t i = rng.below(200); i > 0; --i) text += "ab\n\r"[rng.below(4)];
    std::string joined;
    for (const std::string& piece : split(text, 1 + rng.below(20))) {
      ASSERT_FALSE(piece.empty());
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace ddprun
