// FlightShow: implements `ddprun flight` and `ddprun trace`. Shows flight records of a running job
// or of files, as tables and findings, as JSON or as a trace. Prints to stdout; prints to stderr
// what is missing. Used on the main thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "launcher/flight/json.h"
#include "launcher/flight/trace.h"

namespace ddprun {

struct FlightShowOptions {
  bool json = false;
  std::optional<Rank> rank = {};  // shows this rank only
  std::optional<int> last = {};   // calls per rank; nullopt: 10 in a table, else all
  bool only_compares = false;
  std::string trace_file;                       // empty: none
  std::string trace_option = "--chrome-trace";  // that gave it
};

class FlightShow {
 public:
  explicit FlightShow(FlightShowOptions options) : options_(std::move(options)) {}

  // Take what an agent sends: one line, or lines with their line ends.
  void take(std::string_view json_line);
  void take_page(std::string_view lines);
  // Prints a message to stderr.
  void notice(const std::string& words) const;
  // Reads a flight.json. The error names the file.
  Result<void> read(const std::string& path);
  // Adds the records that were read from processes.
  void add(std::vector<RankFlight> flights);
  // Adds a job of /status.json to the trace.
  void take_job(const nlohmann::json& job);

  bool has_any() const { return !flights_.empty(); }
  // Prints the records, or writes the trace. Returns the system's error if the trace cannot be
  // written.
  Result<void> print() const;

 private:
  std::vector<RankFlight> flights() const;

  FlightShowOptions options_;
  std::vector<RankFlight> flights_;
  std::vector<TraceMark> marks_;
};

}  // namespace ddprun
