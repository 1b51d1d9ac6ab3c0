// A service's state as the journal keeps it: a JSON object under "service", and one under
// "job/<id>" for each job. docs/operations.md says what is in it. Pure functions; any thread.
#pragma once

#include "base/result.h"
#include "rendezvous/membership/core/job_state.h"
#include "rendezvous/persistence/core/journal.h"

namespace ddprun {

JournalEntry to_entry(const StateChange& change);

// kUnsupported: a newer version has written it. kCorrupt: it says what no service would have
// written; the cause names the key. What is handed on can be relied on by those behind.
Result<ServiceState> decode_state(const JournalImage& image);

}  // namespace ddprun
