// Formats the report on the end of a job. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// Returns the report on a failed job, one string per line. First come the first failure and its
// last lines on stderr, then the other ends and how they relate to it. Empty if the job
// succeeded.
std::vector<std::string> failure_report(const std::string& job_id, const Verdict& verdict);

// Returns the same report for a generation that failed and is followed by another one
// (Assignment::failure).
std::vector<std::string> restart_report(const Verdict& failed);

// Returns text such as "2 of 3 restarts".
std::string restarts_of(const Verdict& verdict);

}  // namespace ddprun
