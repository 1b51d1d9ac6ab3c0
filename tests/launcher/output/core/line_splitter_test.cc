#include "launcher/output/core/line_splitter.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

using Pieces = std::vector<std::pair<std::string, PieceEnd>>;
constexpr PieceEnd kLines = PieceEnd::kLines;
constexpr PieceEnd kReturn = PieceEnd::kReturn;
constexpr PieceEnd kCut = PieceEnd::kCut;

// Feeds `text` in chunks of `size` bytes. Returns the pieces, including the flushed rest.
Pieces split(const std::string& text, std::size_t size) {
  LineSplitter splitter;
  Pieces pieces;
  const auto sink = [&](std::string_view piece, PieceEnd end) { pieces.emplace_back(piece, end); };
  for (std::size_t at = 0; at < text.size(); at += size) {
    splitter.feed(std::string_view(text).substr(at, size), sink);
  }
  splitter.flush(sink);
  return pieces;
}

TEST(LineSplitter, GivesWholeLinesAtOnceAndUpdatesOneByOne) {
  const std::string text = "one\ntwo\n\n10%\r20%\rdone\r\nlast\nbut one\nrest";
  EXPECT_EQ(split(text, text.size()), (Pieces{{"one\n", kLines},
                                              {"two\n", kLines},
                                              {"\n", kLines},
                                              {"10%\r", kReturn},
                                              {"20%\r", kReturn},
                                              {"done\r\n", kLines},
                                              {"last\nbut one\n", kLines},
                                              {"rest", kCut}}));
}

TEST(LineSplitter, AnUpdateGoesOutBeforeItIsKnownWhatFollows) {
  LineSplitter splitter;
  Pieces pieces;
  const auto sink = [&](std::string_view piece, PieceEnd end) { pieces.emplace_back(piece, end); };
  splitter.feed("10%\r", sink);
  EXPECT_EQ(pieces, (Pieces{{"10%\r", kReturn}}));
  splitter.feed("\nnext", sink);
  EXPECT_EQ(pieces, (Pieces{{"10%\r", kReturn}, {"\n", kLines}}));
  EXPECT_EQ(splitter.rest(), "next");
}

TEST(LineSplitter, AnUpdateThatBeginsWithItsReturnIsOnePieceWithIt) {
  const std::string text = "start\n\r0%\r50%\r\r100%\nend\r\n\r\n\rdone\r\n\rlast";
  const Pieces expected{{"start\n", kLines},    {"\r0%", kReturn},   {"\r50%", kReturn},
                        {"\r\r100%\n", kLines}, {"end\r\n", kLines}, {"\r\n", kLines},
                        {"\rdone\r\n", kLines}, {"\rlast", kCut}};
  EXPECT_EQ(split(text, text.size()), expected);
  EXPECT_EQ(split("\r0%\r50%\r100%\n", 1),
            (Pieces{{"\r0%", kReturn}, {"\r50%", kReturn}, {"\r100%\n", kLines}}));
  EXPECT_EQ(split("\r0%\r", 1), (Pieces{{"\r0%", kReturn}, {"\r", kReturn}}));
}

TEST(LineSplitter, KnowsAnUpdateThatHasBegunAlsoWhenAPartOfItWasPassedOn) {
  LineSplitter splitter;
  Pieces pieces;
  const auto sink = [&](std::string_view piece, PieceEnd end) { pieces.emplace_back(piece, end); };
  splitter.feed("\r", sink);
  EXPECT_FALSE(splitter.rest_is_update()) << "nothing is to be seen yet";
  splitter.feed("5", sink);
  EXPECT_TRUE(splitter.rest_is_update());
  splitter.drop_rest();
  EXPECT_FALSE(splitter.rest_is_update());
  splitter.feed("0%", sink);
  EXPECT_TRUE(splitter.rest_is_update()) << "it goes on";
  splitter.feed("\r60%", sink);
  EXPECT_EQ(pieces, (Pieces{{"0%", kReturn}}));
  splitter.drop_rest();
  splitter.feed("\r70%\nname? ", sink);
  EXPECT_EQ(pieces, (Pieces{{"0%", kReturn}, {"\r70%\n", kLines}}));
  EXPECT_FALSE(splitter.rest_is_update());
}

TEST(LineSplitter, KeepsAnUnfinishedLineUntilItsEnd) {
  LineSplitter splitter;
  Pieces pieces;
  const auto sink = [&](std::string_view piece, PieceEnd end) { pieces.emplace_back(piece, end); };
  splitter.feed("ab", sink);
  EXPECT_TRUE(pieces.empty());
  splitter.feed("c\nd", sink);
  EXPECT_EQ(pieces, (Pieces{{"abc\n", kLines}}));
  splitter.drop_rest();
  splitter.feed("\n", sink);
  EXPECT_EQ(pieces.back(), (Pieces::value_type{"\n", kLines})) << "what was dropped is forgotten";
}

TEST(LineSplitter, PassesBytesThatAreNoText) {
  const std::string bytes("\x00\xff\xfe\n\x80", 5);
  EXPECT_EQ(split(bytes, 2), (Pieces{{std::string("\x00\xff\xfe\n", 4), kLines}, {"\x80", kCut}}));
}

TEST(LineSplitter, CutsALineThatNeverEndsSoThatMemoryStaysBounded) {
  const std::string text(LineSplitter::kMaxPiece * 2 + 5, 'x');
  for (const std::size_t size : {std::size_t{1000}, text.size()}) {
    const Pieces pieces = split(text, size);
    ASSERT_EQ(pieces.size(), 3u);
    EXPECT_EQ(pieces[0].first.size(), LineSplitter::kMaxPiece);
    EXPECT_EQ(pieces[0].second, kCut);
    EXPECT_EQ(pieces[2].first.size(), 5u);
  }
}

TEST(LineSplitter, LosesAndAddsNothingForRandomBytesAndChunks) {
  Rng rng(3);
  for (int round = 0; round < 2000; ++round) {
    std::string text;
    for (std::uint64_t i = rng.below(200); i > 0; --i) text += "ab\n\r"[rng.below(4)];
    std::string joined;
    for (const auto& [piece, end] : split(text, 1 + rng.below(20))) {
      ASSERT_FALSE(piece.empty());
      ASSERT_TRUE(end != kLines || piece.back() == '\n');
      ASSERT_TRUE(end != kReturn || piece.back() == '\r' || piece.front() == '\r');
      const std::size_t text_begin = piece.find_first_not_of('\r');
      const std::size_t first_return = piece.find('\r', text_begin);
      ASSERT_TRUE(text_begin == std::string::npos || first_return == std::string::npos ||
                  first_return + 2 >= piece.size())
          << "an update is a piece of its own";
      joined += piece;
    }
    ASSERT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace ddprun
