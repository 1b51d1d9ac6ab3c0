// The flight records of ranks that ddprun has not started: each has made its page itself
// (worker_lib/flight/worker_reporter.h), and it is found among the open files of its process, also of one
// that is stopped. Nothing is left of one that has ended. Any thread.
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
  std::vector<std::string> missing;  // why, of each process of which there is none
};

// Of the ranks in these processes: one in each, as a rule. kInvalidArgument: they are of several
// jobs.
Result<ProcessFlights> flights_of(const std::vector<pid_t>& processes);

// Completes a record by what can be seen now: the newest calls of the page, `most` at most (null:
// there is no page), whether the process is stopped (0: it has ended), and when that was.
void look_now(const WorkerPage* page, std::size_t most, pid_t process, RankFlight& flight);

}  // namespace ddprun
