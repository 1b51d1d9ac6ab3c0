// Formats a failed generation as one JSON object, for --report-file and status pages.
// docs/reference/verdicts.md lists its fields. Agents and service exchange the same values in
// another form (shared_fields.h).
//
// A pure function; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// Returns the object. What workers wrote may be invalid UTF-8; it is not replaced here.
nlohmann::ordered_json verdict_json(const Verdict& failed);

// Returns where the time of a job went, for the same places. wall_ms is the sum of causes_ms.
nlohmann::ordered_json times_json(const JobTimes& times);

}  // namespace ddprun
