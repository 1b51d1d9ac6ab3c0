// The names of ddprun's commands, with what --help says of each. If the first word is one of
// these names, it is the command. ./NAME and `-- NAME` run a program of that name instead.
// Constant; any thread.
#pragma once

#include <span>
#include <string_view>

namespace ddprun {

struct CommandName {
  std::string_view name;
  std::string_view arguments;  // as --help writes them
  std::string_view summary;
};

// Returns the commands in the order of --help.
std::span<const CommandName> command_names();

// Returns the command that was probably meant by a word that is not a command, and that no
// training program is likely to be called. Example: `status` for `list`. Empty: the word is a
// program's name.
std::string_view meant_command(std::string_view word);

}  // namespace ddprun
