// Shell completion of ddprun's command line, made from the table of options. Any thread.
#pragma once

#include <string>
#include <vector>

namespace ddprun {

// A script to be sourced: source <(ddprun completion bash).
std::string bash_completion();

// A function for $fpath, named _ddprun; or to be sourced after compinit.
std::string zsh_completion();

// The command completion: prints one of the above. See Subcommand::run.
int run_completion(const std::vector<std::string>& arguments);

}  // namespace ddprun
