// --dry-run: what would be started on this node, in words and as the environment of each worker.
// Any thread; starts and makes nothing.
#pragma once

#include <string>

#include "launcher/agent/agent.h"

namespace ddprun {

// What only the start of a job decides stands in angle brackets; ranks are those of a first
// generation of as many nodes as the job may have, with as many workers each as here.
std::string dry_run_text(const AgentConfig& config);

}  // namespace ddprun
