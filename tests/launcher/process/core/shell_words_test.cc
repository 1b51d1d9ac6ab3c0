#include "launcher/process/core/shell_words.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ShellWords, QuotesOnlyWhatAShellWouldReadOtherwise) {
  EXPECT_EQ(in_shell_words("--lr=3e-4"), "--lr=3e-4");
  EXPECT_EQ(in_shell_words("a b"), "'a b'");
  EXPECT_EQ(in_shell_words("$HOME"), "'$HOME'");
  EXPECT_EQ(in_shell_words("it's"), R"('it'\''s')");
  EXPECT_EQ(in_shell_words(""), "''");
}

TEST(SplitShellWords, RefusesWhatIsNoCommand) {
  for (const char* bad : {"", "  ", "ssh 'x", "ssh \"x", "ssh \"x\\\""})
    EXPECT_FALSE(split_shell_words(bad)) << bad;
  EXPECT_THAT(split_shell_words("ssh 'x").error().message(), HasSubstr("quote"));
}

TEST(SplitShellWords, SplitsAsAShellDoes) {
  EXPECT_THAT(*split_shell_words("ssh"), ElementsAre("ssh"));
  EXPECT_THAT(*split_shell_words("  ssh  -p\t2222 "), ElementsAre("ssh", "-p", "2222"));
  EXPECT_THAT(*split_shell_words(R"(ssh -o 'ProxyCommand=nc %h %p' a\ b "c\"\d" '' e'f'"g")"),
              ElementsAre("ssh", "-o", "ProxyCommand=nc %h %p", "a b", "c\"\\d", "", "efg"));
}

}  // namespace
}  // namespace ddprun
