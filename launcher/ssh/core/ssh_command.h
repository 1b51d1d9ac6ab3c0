// Makes the command that starts the far end on a host. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// The word after `ddprun` that makes it the far end. Only ssh gives it.
inline constexpr const char* kNodeCommand = "ssh-node";

struct SshOptions {
  std::vector<std::string> words;  // of --ssh
  std::string program;             // this ddprun; the far end runs the same path, if it is there
  Duration connect_timeout{};
  Duration lease{};  // a host that is silent for about twice this time is lost
};

// Returns the arguments of the ssh for `host`. Options in `words` win, because ssh takes the first
// value of an option.
std::vector<std::string> ssh_command(const SshOptions& options, const std::string& host);

}  // namespace ddprun
