// Flight records as people read them. Pure; any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "launcher/flight/core/record.h"

namespace ddprun {

// A headline for the rank, and a table of its newest calls, `last` at most, the newest last. all: whose
// names of groups count.
std::string flight_table(const std::vector<RankFlight>& all, const RankFlight& flight,
                         std::size_t last);

// What compare_flights() finds, a line each; or that there is nothing.
std::string findings_text(const std::vector<RankFlight>& flights);

}  // namespace ddprun
