// State codec: converts a service's state to and from the entries of its journal. The journal has a
// JSON object under "service", and one under "job/<id>" for each job. docs/how-to/operations.md
// describes them. Pure functions; any thread.
#pragma once

#include "base/result.h"
#include "rendezvous/membership/core/job_state.h"
#include "rendezvous/persistence/core/journal.h"

namespace ddprun {

JournalEntry to_entry(const StateChange& change);

// Returns the state in the image. kUnsupported: a newer version has written it. kCorrupt: no
// service could have written it; the cause names the key. A state that is returned satisfies
// all that Membership relies on.
Result<ServiceState> decode_state(const JournalImage& image);

}  // namespace ddprun
