// Reads the command line of ddprun by the table of its options (launcher/options/option_table.h).
//
// What is given counts in this order: the command line, PET_<NAME> in the environment, the file of
// --config, the default. Everything after the program is the program's. Any thread; touches nothing
// but its arguments, the environment, and that file.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/options/option_table.h"

namespace ddprun {

// What counts for one option.
struct OptionSetting {
  const OptionSpec* option = nullptr;
  std::vector<std::string> texts;  // empty: the default
  std::string source;              // "command line", PET_<NAME>, the file's path, "default"
};

struct CommandLine {
  LaunchOptions options;
  std::vector<OptionSetting> settings;  // of every option, in the table's order; none for --help
  std::string program_source;           // as OptionSetting::source
};

// arguments: without the program's own name. The error is one line that names the option, and the
// file where it stands in one, and says what would be right; kInvalidArgument, but for a file that
// cannot be read.
Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments);

// The option that `given`, the text before '=', names: by its name, or, as torchrun's parser takes it,
// by the beginning of one of torchrun's own. Null where that is for CLI11 to see: -r3, or nothing that
// there is.
Result<const OptionSpec*> option_of(const std::string& given);

}  // namespace ddprun
