// `ddprun flight`: shows flight records, of a job that runs or of files, as tables, in words, as JSON or
// as a trace. Prints to stdout, and what is missing to stderr. For the main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "launcher/flight/json.h"

namespace ddprun {

struct FlightShowOptions {
  bool json = false;
  std::optional<Rank> rank = {};  // the only one that is shown
  std::optional<int> last = {};   // calls of each rank; nullopt: ten in a table, else all
  bool only_compares = false;
  std::string trace_file;  // empty: none
};

class FlightShow {
 public:
  explicit FlightShow(FlightShowOptions options) : options_(std::move(options)) {}

  // What an agent tells: a line, or lines with their ends.
  void take(std::string_view json_line);
  void take_page(std::string_view lines);
  // News of its own, for people.
  void notice(const std::string& words) const;
  // A flight.json. The error names it.
  Result<void> read(const std::string& path);
  // What was read of processes.
  void add(std::vector<RankFlight> flights);

  bool has_any() const { return !collected_.flights().empty() || !given_.empty(); }
  // kInvalidArgument or the system's: the trace cannot be written.
  Result<void> print() const;

 private:
  std::vector<RankFlight> flights() const;

  FlightShowOptions options_;
  FlightCollector collected_;
  std::vector<RankFlight> given_;  // of files and processes
};

}  // namespace ddprun
