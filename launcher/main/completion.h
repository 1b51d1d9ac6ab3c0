// Shell completion of ddprun's command line, generated from the table of options. Any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// Returns a script to be sourced: source <(ddprun completion bash).
std::string bash_completion();

// Returns a completion function for a directory of $fpath, in a file named _ddprun. The script
// can also be sourced after compinit.
std::string zsh_completion();

// Runs the command `completion`: prints one of the scripts above. See subcommand.h.
int run_completion(const std::vector<std::string>& arguments);

}  // namespace ddprun
