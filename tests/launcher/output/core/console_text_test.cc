#include "launcher/output/core/console_text.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "base/rng.h"

namespace ddprun {
namespace {

// TwoSources: two sources on one stream, each with its own splitter.
class TwoSources {
 public:
  TwoSources() {
    sources_[0].prefix = "[0] ";
    sources_[1].prefix = "[1] ";
  }
  void write(std::size_t who, std::string_view bytes) {
    splitters_[who].feed(bytes, [&](std::string_view piece, PieceEnd end) {
      text_.add(sources_[who], piece, end, out_);
    });
  }
  // Passes on the unfinished rest of a source, as the console does so that its reader sees it.
  void show_rest(std::size_t who) {
    if (splitters_[who].rest().empty()) return;
    text_.add(sources_[who], splitters_[who].rest(), PieceEnd::kCut, out_);
    splitters_[who].drop_rest();
  }
  void finish(std::size_t who) {
    splitters_[who].flush(
        [&](std::string_view piece, PieceEnd end) { text_.add(sources_[who], piece, end, out_); });
    text_.finish(sources_[who], out_);
  }
  std::string out() const { return std::string(out_.bytes()); }

 private:
  std::array<ConsoleSource, 2> sources_;
  std::array<LineSplitter, 2> splitters_;
  ConsoleText text_;
  OutputBuffer out_;
};

TEST(ConsoleText, PutsThePrefixInFrontOfEachLine) {
  TwoSources two;
  two.write(0, "one\ntwo\n\n");
  two.write(1, "three\n");
  EXPECT_EQ(two.out(), "[0] one\n[0] two\n[0] \n[1] three\n");
}

TEST(ConsoleText, AnUpdateBeginsWithThePrefixAndOverwritesTheLastOne) {
  TwoSources two;
  two.write(0, "10%\r20%\r");
  EXPECT_EQ(two.out(), "[0] 10%\r[0] 20%\r");
  two.write(0, "done\n");
  EXPECT_EQ(two.out(), "[0] 10%\r[0] 20%\r[0] done\n");
}

TEST(ConsoleText, ABarAndALineOfAnotherOneDoNotDestroyEachOther) {
  TwoSources two;
  two.write(0, "10%\r");
  two.write(1, "x\n");
  two.write(0, "20%\r");
  two.write(1, "5%\r");
  EXPECT_EQ(two.out(), "[0] 10%\r\n[1] x\n[0] 20%\r\n[1] 5%\r");
}

TEST(ConsoleText, AnUpdateThatBeginsWithItsReturnHasThePrefixBehindIt) {
  TwoSources two;
  for (const char* update : {"\r0%", "\r50%", "\r100%", "\n"}) {
    two.write(0, update);
    two.show_rest(0);
  }
  two.write(0, "done\n");
  EXPECT_EQ(two.out(), "\r[0] 0%\r[0] 50%\r[0] 100%\n[0] done\n");
}

TEST(ConsoleText, SuchABarIsEndedForAnotherOneAndLeavesNoEmptyLine) {
  TwoSources two;
  two.write(0, "\r0%");
  two.show_rest(0);
  two.write(1, "x\n");
  two.write(0, "\r50%");
  two.show_rest(0);
  two.write(1, "\r5%");
  two.show_rest(1);
  two.write(0, "\n");
  two.write(1, "\r\n");
  EXPECT_EQ(two.out(), "\r[0] 0%\n[1] x\n\r[0] 50%\n\r[1] 5%\r\n")
      << "its own end comes when its line was ended already";
  two.write(0, "7%\r");
  two.write(1, "y\n");
  two.write(0, "\n\nz\n");
  EXPECT_TRUE(two.out().ends_with("[0] 7%\r\n[1] y\n[0] \n[0] z\n")) << two.out();
}

TEST(ConsoleText, AnEmptyLineOfItsOwnHasItsPrefixHoweverItEnds) {
  TwoSources two;
  two.write(0, "\n\r\n\r0%\r\n\n");
  EXPECT_EQ(two.out(), "[0] \n[0] \r\n\r[0] 0%\r\n[0] \n");
}

TEST(ConsoleText, WithoutPrefixesTheBytesOfOneSourceAreAsTheyWere) {
  const std::string text = "\r\n\r0%\r50%\r\r100%\n10%\r20%\r\n\r\r";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    ConsoleSource source;
    ConsoleText console;
    OutputBuffer out;
    LineSplitter splitter;
    const auto sink = [&](std::string_view piece, PieceEnd end) {
      console.add(source, piece, end, out);
    };
    for (std::size_t at = 0; at < text.size(); at += size) {
      splitter.feed(std::string_view(text).substr(at, size), sink);
      if (splitter.rest().empty()) continue;
      sink(splitter.rest(), PieceEnd::kCut);
      splitter.drop_rest();
    }
    splitter.flush(sink);
    console.finish(source, out);
    EXPECT_EQ(out.bytes(), text) << "chunks of " << size;
  }
}

TEST(ConsoleText, AReturnAndItsNewlineAreOneEndHoweverTheyCome) {
  const std::string text = "a\r\nb\r\nc\n";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    TwoSources two;
    for (std::size_t at = 0; at < text.size(); at += size) two.write(0, text.substr(at, size));
    EXPECT_EQ(two.out(), "[0] a\r\n[0] b\r\n[0] c\n") << "chunks of " << size;
  }
  TwoSources two;
  two.write(0, "a\r");
  two.write(1, "x\n");
  two.write(0, "\nb\n");
  EXPECT_EQ(two.out(), "[0] a\r\n[1] x\n[0] b\n") << "also when another one came between";
}

TEST(ConsoleText, WhatWasShownUnfinishedGoesOnInTheSameLine) {
  TwoSources two;
  two.write(0, "name? ");
  two.show_rest(0);
  two.write(0, "yes\nnext\n");
  EXPECT_EQ(two.out(), "[0] name? yes\n[0] next\n");
}

TEST(ConsoleText, WhatWasShownUnfinishedIsEndedForAnotherOne) {
  TwoSources two;
  two.write(0, "..");
  two.show_rest(0);
  two.write(1, "x\n");
  two.write(0, "..\n");
  EXPECT_EQ(two.out(), "[0] ..\n[1] x\n[0] ..\n");
}

TEST(ConsoleText, ALineLongerThanAnythingIsWholeWhenNobodyComesBetween) {
  TwoSources two;
  const std::string line(LineSplitter::kMaxPiece * 2 + 7, 'x');
  two.write(0, line + "\n");
  EXPECT_EQ(two.out(), "[0] " + line + "\n");
}

TEST(ConsoleText, TheLastLineOfWhoIsGoneIsEnded) {
  TwoSources two;
  two.write(0, "part");
  two.finish(0);
  EXPECT_EQ(two.out(), "[0] part\n");
  two.write(1, "50%\r");
  two.finish(1);
  EXPECT_EQ(two.out(), "[0] part\n[1] 50%\r") << "as it was";
  two.write(0, "more\n");
  EXPECT_EQ(two.out(), "[0] part\n[1] 50%\r\n[0] more\n") << "but nobody overwrites it";
}

// Holds for any order of writes:
// - A line that ends with \n has bytes of only one source.
// - No letter of a source is lost or added.
TEST(ConsoleText, NeverMixesSourcesForRandomStories) {
  Rng rng(11);
  for (int round = 0; round < 3000; ++round) {
    TwoSources two;
    std::array<std::string, 2> written;
    for (std::uint64_t i = rng.below(30); i > 0; --i) {
      const std::size_t who = rng.below(2);
      std::string bytes;
      const char letter = who == 0 ? 'a' : 'b';
      for (std::uint64_t k = 1 + rng.below(6); k > 0; --k) {
        bytes += std::string{letter, '\n', letter, '\r'}[rng.below(4)];
      }
      two.write(who, bytes);
      written[who] += bytes;
      if (rng.below(3) == 0) two.show_rest(who);
    }
    two.finish(0);
    two.finish(1);
    std::string line;
    std::array<std::size_t, 2> letters{};
    for (const char c : two.out()) {
      if (c == 'a') ++letters[0];
      if (c == 'b') ++letters[1];
      line += c;
      if (c != '\n') continue;
      ASSERT_FALSE(line.find('a') != std::string::npos && line.find('b') != std::string::npos)
          << "round " << round;
      line.clear();
    }
    for (const std::size_t who : {0u, 1u}) {
      const char letter = who == 0 ? 'a' : 'b';
      ASSERT_EQ(letters[who], static_cast<std::size_t>(
                                  std::count(written[who].begin(), written[who].end(), letter)));
    }
  }
}

}  // namespace
}  // namespace ddprun
