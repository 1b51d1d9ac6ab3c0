// The commands of ddprun: a first word that is the name of one is one; ./NAME and `-- NAME` run a
// program of that name. Constant; any thread.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

struct Subcommand {
  std::string_view name;
  std::string_view arguments;  // as --help writes them
  std::string_view summary;
  // arguments: behind the name. Returns the exit code. For the main thread.
  int (*run)(const std::vector<std::string>& arguments);
};

// In the order of --help.
std::span<const Subcommand> subcommands();

// The command that a word means which is none and which no training is called: `list` for `status`; null: it is a
// program's name.
const Subcommand* meant_subcommand(std::string_view word);

// Null where there is none of this name.
const Subcommand* find_subcommand(std::string_view name);

}  // namespace ddprun
