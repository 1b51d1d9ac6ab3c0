// Reads the flight records of ranks that ddprun did not start. Such a rank makes its own page
// (worker_lib/flight/worker_reporter.h), which is found among the open files of its process.
// This also works for a stopped process. A process that has ended leaves nothing. Any thread.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/worker_page.h"
#include "launcher/flight/core/record.h"

namespace ddprun {

struct ProcessFlights {
  std::vector<RankFlight> flights;
  std::vector<std::string> missing;  // for each process without a record: why
};

// Returns the records of the ranks in these processes, usually one per process. Returns
// kInvalidArgument if two processes have the same rank, which means that they belong to several
// jobs.
Result<ProcessFlights> read_process_flights(const std::vector<pid_t>& processes);

// Completes a record with the current state: the newest calls of the page (at most max_calls),
// whether the process is stopped, and the time of reading. page: null if there is none. process:
// 0 if it has ended.
void complete_flight(const WorkerPage* page, std::size_t max_calls, pid_t process,
                     RankFlight& flight);

}  // namespace ddprun
