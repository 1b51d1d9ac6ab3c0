// The commands of ddprun by name, with what --help says of each. A first word that is one of these names is the
// command; ./NAME and `-- NAME` run a program of that name. Constant; any thread.
#pragma once

#include <span>
#include <string_view>

namespace ddprun {

struct CommandName {
  std::string_view name;
  std::string_view arguments;  // as --help writes them
  std::string_view summary;
};

// In the order of --help.
std::span<const CommandName> command_names();

// Returns the command that a word means that is none, and that no training is called: `list` for
// `status`. Empty: it is a program's name.
std::string_view meant_command(std::string_view word);

}  // namespace ddprun
