// What a failure that is well known usually comes from, and what to do. One table; pure; any thread.
#pragma once

#include <string>

#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// One line, or empty where nothing is known of such an end.
std::string hint_for(const WorkerEnd& end);

}  // namespace ddprun
