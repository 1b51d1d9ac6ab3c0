// `ddprun logs`: shows what agents tell of their workers' output as it comes. Blocks; for the main
// thread.
#pragma once

#include <optional>
#include <vector>

#include "base/ids.h"
#include "launcher/control_client.h"

namespace ddprun {

struct LogOptions {
  bool json = false;
  bool names_ranks = false;  // "[rank 3] " in front of each line
  bool follow = false;
  int lines = 0;  // of each stream, before what follows
  std::optional<Rank> rank = {};
};

// clients: whose request was accepted. stdout to stdout, stderr to stderr; with json all to stdout,
// an object for each line. Until the agents have nothing more to say; returns the exit code.
int show_logs(std::vector<ControlClient> clients, const LogOptions& options);

}  // namespace ddprun
