// Whether ranks failed in the same way: an exception that all of them raise has no victims. Pure; any
// thread.
#pragma once

#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// Returns whether `end` is a failure of its own with the same words as `first`: the message of its error file,
// or else its last line on stderr. Numbers may differ. A rank that said the same and was then stopped counts.
bool is_same_failure(const WorkerEnd& end, const WorkerEnd& first);

}  // namespace ddprun
