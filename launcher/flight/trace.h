// Makes a timeline of all ranks in Chrome's "Trace Event Format", which Perfetto and
// chrome://tracing show. Each rank is a process. Each group is a row, with more rows where its
// calls overlap. The first row has the generation. The job is a process, too, with its events.
//
// Times are microseconds since the first event. Times of ranks are aligned between hosts
// (core/clocks.h); `otherData` has the bound for each host. The job's events have the wall clock of
// the service. Functions without an object; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/flight/core/record.h"

namespace ddprun {

// An event of the job: what happened, and when by a wall clock.
struct TraceMark {
  std::int64_t wall_ns = 0;
  std::string what;
};

// Returns the events and failures of a job of /status.json.
std::vector<TraceMark> marks_of(const nlohmann::json& job);

std::string chrome_trace(const std::vector<RankFlight>& flights,
                         const std::vector<TraceMark>& marks = {});

// Writes the trace; compressed, if the name ends with .gz. The error names the file.
Result<void> write_trace(const std::string& path, const std::string& trace);

}  // namespace ddprun
