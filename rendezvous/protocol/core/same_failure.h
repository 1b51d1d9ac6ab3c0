// Tells whether ranks failed in the same way. If all ranks raise the same exception, none of
// them is a victim. Pure; any thread.
#pragma once

#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// Returns true if `end` is a failure of its own with the same text as `first`. The text is the
// message of the error file, or else the last line on stderr. Numbers may differ. A rank that
// printed the same text and was then stopped counts.
bool is_same_failure(const WorkerEnd& end, const WorkerEnd& first);

}  // namespace ddprun
