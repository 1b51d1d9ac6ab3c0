// A failed generation as one JSON object, for whoever reads it: --report-file and status pages. Its
// fields are in docs/verdicts.md; between agents and service the same values travel in another form
// (control_json.h). A pure function; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// What workers write may be no UTF-8, and is so in here, too.
nlohmann::ordered_json verdict_json(const Verdict& failed);

}  // namespace ddprun
