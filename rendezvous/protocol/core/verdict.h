// Verdict: how a generation, or the whole job, ended. The service decides it, agents report it.
//
// Value types and pure functions; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "base/ids.h"
#include "rendezvous/protocol/core/job_times.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// Why a job did not succeed.
enum class VerdictCause {
  kFailure,      // a worker or a node failed; Verdict::ends says how
  kStopped,      // a user, or a signal to a node, ended the job
  kTooFewNodes,  // the join timeout has passed
};

inline constexpr EnumNames<VerdictCause, 3> kVerdictCauseWords{
    {{VerdictCause::kFailure, "failure"},
     {VerdictCause::kStopped, "stopped"},
     {VerdictCause::kTooFewNodes, "too_few_nodes"}}};

struct Verdict {
  bool success = false;
  VerdictCause cause = VerdictCause::kFailure;  // of no meaning after a success
  int exit_code = 0;
  std::string headline;  // one line, for people
  // Why a job with restarts left was not restarted, for people. Empty: there is no such reason.
  // The headline has it, too.
  std::string not_restarted_because = {};
  std::vector<WorkerEnd> ends;  // of the last generation, the first failure first; an excerpt
  int more_ends = 0;            // number of ends that are not in the excerpt (keep_likeliest)
  std::vector<std::string> seen = {};  // for a generation that hung: what each rank did
  Generation generation{-1};
  int restarts_used = 0;
  int max_restarts = 0;
  std::optional<JobTimes> times = {};  // only in the verdict of the whole job

  friend bool operator==(const Verdict&, const Verdict&) = default;
};

// Returns the verdict of a job that was stopped. why: who or what stopped it, for people.
Verdict stopped_verdict(int exit_code, std::string_view why);

// Records why no restart follows, also in the headline. Call it once.
void set_not_restarted(Verdict& verdict, const std::string& why);

// Sets `cause` and `not_restarted_because` of a verdict that a version before these fields has
// written. That version decided by the headline and by whether there are ends.
void infer_cause(Verdict& verdict);

// Returns true if `end` is a failure of its own with the same text as `first`: if all ranks raise
// the same exception, none of them is a victim. The text is the message of the error file, or else
// the last line on stderr. Numbers may differ. A rank that printed the same text and was then
// stopped counts, unless `first` was killed by SIGKILL.
bool is_same_failure(const WorkerEnd& end, const WorkerEnd& first);

}  // namespace ddprun
