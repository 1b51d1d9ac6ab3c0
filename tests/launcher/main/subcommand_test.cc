#include "launcher/main/subcommand.h"

#include <gtest/gtest.h>

#include "launcher/options/core/command_names.h"

namespace ddprun {
namespace {

TEST(Subcommand, EveryNameOfTheHelpHasAFunction) {
  for (const CommandName& command : command_names()) {
    EXPECT_NE(find_command(command.name), nullptr) << command.name;
  }
}

TEST(Subcommand, OtherWordsAreProgramsNames) {
  EXPECT_EQ(find_command("train"), nullptr);
  EXPECT_EQ(find_command(""), nullptr);
  EXPECT_EQ(find_command("ls"), nullptr);
}

}  // namespace
}  // namespace ddprun
