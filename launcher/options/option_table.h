// The one table of ddprun's options: from it come parsing, --help, the man page, shell completion,
// --config and --print-config. Names are torchrun's where it has the option, too. Constant after
// the first use; any thread.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct OptionSpec {
  // Reads one text. The error is kInvalidArgument and does not name the option.
  using Setter = std::function<Result<void>(LaunchOptions&, const std::string& text)>;

  std::string group = {};
  std::string name = {};         // long, with dashes
  std::string short_name = {};   // one letter, or empty
  std::string placeholder = {};  // of its value; empty: a switch
  std::string help = {};
  std::string example = {};
  Setter set = {};            // a switch without =VALUE gets "true"
  std::string fallback = {};  // what it is where it is not given, where that is worth a word
  // Where it may be given: on the command line, in the environment, in the file of --config.
  enum class Where { kAnywhere, kNotInFile, kCommandLineOnly };
  Where where = Where::kAnywhere;
  // A repeated option is set once for each time it is given, in order; else the last one counts.
  bool repeats = false;
  std::vector<std::string> choices = {};  // for completion; empty: not a matter of words

  bool is_switch() const { return placeholder.empty(); }
};

// In the order of --help.
const std::vector<OptionSpec>& option_table();

// The names of torchrun's options (2.11), with dashes: its parser takes the beginning of one for it.
std::span<const std::string_view> torchrun_options();

// What torchrun has and ddprun has not.
struct RefusedOption {
  std::string name;     // with dashes
  std::string instead;  // what to do
};
// Null where there is none of this name.
const RefusedOption* find_refused(const std::string& name);

// Of all options, without the dashes in front.
const std::vector<std::string>& option_names();

// The option that is written so: --name with - or _, or -n. Null where there is none.
const OptionSpec* find_option(const std::string& given);

std::string with_dashes(std::string name);
std::string with_underscores(std::string name);
// PET_<NAME>, which stands in for an option that is not given, as torchrun's.
std::string environment_name(const std::string& name);

}  // namespace ddprun
