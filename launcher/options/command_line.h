// Parses the command line of ddprun according to the table of its options
// (launcher/options/option_table.h).
//
// The value of an option comes from the first of these that has one: the command line, PET_<NAME>
// in the environment, the file of --config, the scheduler, the default.
// launcher/cluster/core/cluster_plan.h has the scheduler's values. All arguments after the program
// belong to the program. Any thread; touches only its arguments, the environment, that file,
// whether standard input is a terminal and, in a pod without a list of GPUs, the driver's library.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/options/option_table.h"

namespace ddprun {

// OptionSetting: the value of one option and its source.
struct OptionSetting {
  const OptionSpec* option = nullptr;
  std::vector<std::string> texts;  // empty: the default
  // "command line", PET_<NAME>, the file's path, "Slurm step 812.0", "default"
  std::string source;
};

struct CommandLine {
  LaunchOptions options;
  std::vector<OptionSetting> settings;  // of every option, in the table's order; empty for --help
  std::string program_source;           // as OptionSetting::source
};

// Parses the arguments, which do not include ddprun's own name. An error is one line that names
// the option, and the file if it is in one, and says what would be right. It is
// kInvalidArgument, except for a file that cannot be read.
Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments);

// Returns the option that `given`, the text before '=', names. The text may be its name, or, as
// in torchrun's parser, the beginning of a name of torchrun's. Null: one dash with letters that
// are not an option's name, such as -r3. Fails if `given` begins with -- and is unknown, refused or
// ambiguous.
Result<const OptionSpec*> option_of(const std::string& given);

}  // namespace ddprun
