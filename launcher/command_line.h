// The command line of ddprun: one table of options, from which parsing and --help are made.
//
// Names are torchrun's, with - or _; PET_<NAME> in the environment stands for an option that is not
// given. Everything after the program is the program's. Any thread; touches nothing but its
// arguments and the environment.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/core/launch_options.h"

namespace ddprun {

// What the command line asks for.
struct CommandLine {
  enum class Wish { kRun, kHelp, kVersion };
  Wish wish = Wish::kRun;
  LaunchOptions options;
};

// arguments: without the program's own name. A kInvalidArgument error is one line that names the
// option and says what would be right.
Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments);

// Every option with the example that --help gives of it.
struct OptionExample {
  std::string name;  // long, with dashes
  std::string example;
};
std::vector<OptionExample> option_examples();

// The text of --help: options in groups, an example each, exit codes.
std::string help_text();

}  // namespace ddprun
