// Converts flight records to and from JSON (docs/how-to/control.md, "The flight record"). Used for
// lines on an agent's socket, and for flight.json of a failed generation. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/flight/core/record.h"

namespace ddprun {

// Returns the record as one object, and a call as one.
nlohmann::json flight_json(const RankFlight& flight);
nlohmann::json call_json(const FlightEntry& call);

// Returns the record as several lines without line ends, each with at most kCallsOnALine calls.
// take_flight_line() joins them again.
inline constexpr std::size_t kCallsOnALine = 128;
std::vector<std::string> flight_lines(const RankFlight& flight);

// Takes one line of an agent: adds its record to `flights`, or its calls to a record there.
// Returns false if it holds no flight record, or one of another version.
bool take_flight_line(std::string_view json_line, std::vector<RankFlight>& flights);

// Returns the text of a flight.json: a JSON array with one rank per line.
std::string flight_file(const std::vector<RankFlight>& flights);
// Parses the text of a flight.json. Returns kInvalidArgument with what is wrong.
Result<std::vector<RankFlight>> parse_flight_file(std::string_view text);

}  // namespace ddprun
