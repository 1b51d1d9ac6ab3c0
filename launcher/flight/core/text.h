// Formats flight records as text for people. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/flight/core/record.h"

namespace ddprun {

// Returns a headline for the rank and a table of its newest calls, at most `last`, the newest
// last. Names of groups are taken from `all`.
std::string flight_table(const std::vector<RankFlight>& all, const RankFlight& flight,
                         std::size_t last);

// Returns the findings of compare_flights(), one per line, or a sentence that there are none.
std::string findings_text(const std::vector<RankFlight>& flights);

}  // namespace ddprun
