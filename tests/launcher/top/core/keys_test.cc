#include "launcher/top/core/keys.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Kind = Key::Kind;

std::vector<Kind> kinds_of(std::string_view bytes) {
  std::vector<Kind> kinds;
  for (const Key& key : keys_of(bytes)) kinds.push_back(key.kind);
  return kinds;
}

TEST(Keys, AreTextAndSequences) {
  EXPECT_EQ(kinds_of("\x1b[A\x1b[B\x1bOA\x1bOB"),
            (std::vector{Kind::kUp, Kind::kDown, Kind::kUp, Kind::kDown}));
  EXPECT_EQ(kinds_of("\x1b[5~\x1b[6~\x1b[H\x1b[F\x1b[1~\x1b[4~"),
            (std::vector{Kind::kPageUp, Kind::kPageDown, Kind::kHome, Kind::kEnd, Kind::kHome,
                         Kind::kEnd}));
  EXPECT_EQ(kinds_of("q\r\x7f\x1b"),
            (std::vector{Kind::kText, Kind::kEnter, Kind::kBackspace, Kind::kEscape}));
  EXPECT_EQ(keys_of("q").front().text, 'q');
}

TEST(Keys, OtherSequencesAreOneUnknownKey) {
  EXPECT_EQ(kinds_of("\x1b[15~j"), (std::vector{Kind::kOther, Kind::kText}));
  EXPECT_EQ(kinds_of("\x1b[1;5Cj"), (std::vector{Kind::kOther, Kind::kText}));
  EXPECT_EQ(kinds_of("\x1b["), (std::vector{Kind::kOther})) << "incomplete";
  EXPECT_EQ(kinds_of("\x1b[5"), (std::vector{Kind::kOther}));
  EXPECT_EQ(kinds_of("\x03"), (std::vector{Kind::kOther}));
}

}  // namespace
}  // namespace ddprun
