// --dry-run: describes what would be started on this node: the job, and the environment of each
// worker. Any thread. Starts and creates nothing.
#pragma once

#include <string>

#include "launcher/agent/agent.h"

namespace ddprun {

// Returns that description. Values that are known only once the job starts stand in angle
// brackets. The ranks are those of a first generation of options.nodes.max nodes, if each node
// has as many workers as this one.
std::string dry_run_text(const AgentConfig& config);

}  // namespace ddprun
