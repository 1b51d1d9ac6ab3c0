// The words in which a job's end is told. Pure; any thread.
#pragma once

#include <string>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// The report on a failed job, one string per line: the first failure and its last lines on stderr,
// then the others and what they are. Empty for a job that ended well.
std::vector<std::string> failure_report(const std::string& job_id, const Verdict& verdict);

// The same of a generation that failed and is followed by another one (Assignment::failure).
std::vector<std::string> restart_report(const Verdict& failed);

// "2 of 3 restarts".
std::string restarts_of(const Verdict& verdict);

}  // namespace ddprun
