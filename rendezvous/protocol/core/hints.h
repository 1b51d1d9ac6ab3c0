// hint_for(): names the usual cause of a well-known failure and its remedy, from one table.
// Pure; any thread.
#pragma once

#include <string>

#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// Returns one line, or an empty text if nothing is known about such an end.
std::string hint_for(const WorkerEnd& end);

}  // namespace ddprun
