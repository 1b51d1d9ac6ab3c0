#include "launcher/options/core/command_names.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace ddprun {
namespace {

TEST(CommandNames, EachIsThereOnceAndSaysWhatItDoes) {
  std::set<std::string_view> names;
  for (const CommandName& command : command_names()) {
    EXPECT_TRUE(names.insert(command.name).second) << command.name;
    EXPECT_FALSE(command.summary.empty()) << command.name;
  }
  EXPECT_TRUE(names.contains("status"));
}

TEST(CommandNames, WordsOfOtherToolsMeanStatus) {
  EXPECT_EQ(meant_command("ps"), "status");
  EXPECT_EQ(meant_command("ls"), "status");
  EXPECT_EQ(meant_command("status"), "");
  EXPECT_EQ(meant_command("top"), "") << "a command of its own";
  EXPECT_EQ(meant_command("train"), "");
}

}  // namespace
}  // namespace ddprun
