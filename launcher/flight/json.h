// Flight records as JSON (docs/control.md, "The flight record"): lines on an agent's socket, the file
// flight.json of a generation that failed, and traces for Perfetto and chrome://tracing. Pure; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "launcher/flight/core/record.h"

namespace ddprun {

// In one object.
nlohmann::json flight_json(const RankFlight& flight);

// On several lines, without their ends, of kCallsOnALine calls each at most: what
// FlightCollector::take() puts together again.
inline constexpr std::size_t kCallsOnALine = 128;
std::vector<std::string> flight_lines(const RankFlight& flight);

// Puts records together from the lines of one or several agents.
class FlightCollector {
 public:
  // False: the line is about something else.
  bool take(std::string_view json_line);
  // By rank.
  std::vector<RankFlight> flights() const;

 private:
  std::vector<RankFlight> flights_;
};

// A flight.json: a JSON array with one rank on each line.
std::string flight_file(const std::vector<RankFlight>& flights);
// The error says what is wrong with the text.
Result<std::vector<RankFlight>> parse_flight_file(std::string_view text);

// The "Trace Event Format": a process for each rank, a row for each group, and more where calls of one
// group overlap. Times are those of the wall clocks of the hosts.
std::string chrome_trace(const std::vector<RankFlight>& flights);

}  // namespace ddprun
