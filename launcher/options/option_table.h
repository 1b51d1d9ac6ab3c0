// The table of ddprun's options. Parsing, --help, the man page, shell completion, --config and
// --print-config are made from it. If torchrun has an option, too, it has torchrun's name.
// Constant after the first use; any thread.
#pragma once

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct OptionSpec {
  // Reads one text. The error is kInvalidArgument and does not name the option.
  using Setter = std::function<Result<void>(LaunchOptions&, const std::string& text)>;

  std::string name = {};         // the long name, with dashes
  std::string placeholder = {};  // for its value; empty: a switch
  std::string help = {};
  std::string example = {};
  Setter set = {};                        // a switch without =VALUE gets "true"
  std::string fallback = {};              // its value if it is not given, where worth showing
  std::vector<std::string> choices = {};  // for completion; empty: no fixed set of words
  std::string short_name = {};            // one letter, or empty
  // If true, the option is set once for each time it is given, in order. Otherwise the last one
  // counts.
  bool repeats = false;
  // The places where it may be given: on the command line, in the environment, in the file of
  // --config.
  enum class Where { kAnywhere, kNotInFile, kCommandLineOnly };
  Where where = Where::kAnywhere;
  std::string group = {};  // of --help

  bool is_switch() const { return placeholder.empty(); }
};

// Returns the table, in the order of --help.
const std::vector<OptionSpec>& option_table();

// Returns the names of torchrun's options (2.11), with dashes. torchrun's parser accepts the
// beginning of a name for it.
std::span<const std::string_view> torchrun_options();

// Makes a setter of a table of options: puts what `parse` makes of the text at a place. place: a
// member of the options, or a function that returns it.
template <class Place, class Parse>
auto setter(Place place, Parse parse) {
  return [=](auto& options, const std::string& text) -> Result<void> {
    auto value = parse(text);
    if (!value) return value.error();
    std::invoke(place, options) = std::move(*value);
    return {};
  };
}
inline Result<std::string> text_as_given(const std::string& text) { return text; }

// RefusedOption: an option that torchrun has and ddprun does not have.
struct RefusedOption {
  std::string name;     // with dashes
  std::string instead;  // what to do instead
};
// Returns the refused option of this name; null: there is none.
const RefusedOption* find_refused(const std::string& name);

// Returns the names of all options, without leading dashes.
const std::vector<std::string>& option_names();

std::string with_dashes(std::string name);

// Returns the option in a list that is written like `given`: --name with - or _, or -n. Null:
// there is none.
template <class Options>
auto find_written(const Options& options, const std::string& given) {
  const auto found = std::ranges::find_if(options, [&](const auto& one) {
    const bool is_short = !one.short_name.empty() && given == "-" + one.short_name;
    return is_short || with_dashes(given) == "--" + one.name;
  });
  return found == options.end() ? nullptr : &*found;
}
// Returns find_written() of the table.
const OptionSpec* find_option(const std::string& given);

std::string with_underscores(std::string name);
// Returns PET_<NAME>: the variable that, as in torchrun, replaces an option that is not given.
std::string environment_name(const std::string& name);

}  // namespace ddprun
