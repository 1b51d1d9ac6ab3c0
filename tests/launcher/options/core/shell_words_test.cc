#include "launcher/options/core/shell_words.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(ShellWords, QuotesOnlyWhatAShellWouldReadOtherwise) {
  EXPECT_EQ(in_shell_words("--lr=3e-4"), "--lr=3e-4");
  EXPECT_EQ(in_shell_words("a b"), "'a b'");
  EXPECT_EQ(in_shell_words("$HOME"), "'$HOME'");
  EXPECT_EQ(in_shell_words("it's"), R"('it'\''s')");
  EXPECT_EQ(in_shell_words(""), "''");
}

}  // namespace
}  // namespace ddprun
