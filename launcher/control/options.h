// Parses the command lines of `ddprun status`, `logs`, `stop`, `restart`, `signal`, `flight` and
// `trace`. Pure functions of their arguments; any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

// The command `trace`. It is no request of its own: it asks for kFlight and kStatus, which is what
// parse_control_options() returns for it.
inline constexpr auto kTrace = static_cast<UserRequest::What>(-1);

// The job of the request is a job's id or the process id of a ddprun; empty: the only job.
struct ControlOptions : UserRequest {
  bool json = false;
  bool wants_help = false;
  std::optional<Duration> timeout;  // of stop
  // For flight. files and processes replace a job: saved records, and processes that were
  // started without ddprun. last: calls of each rank to show. only_compares: show no calls, only
  // how ranks differ.
  std::vector<std::string> files;
  std::vector<pid_t> processes;
  std::optional<int> last;
  bool only_compares = false;
  std::string trace_file;  // empty: none
  bool is_trace = false;   // the command is `trace`
  LaunchOptions service;   // how to reach the service; used if --rdzv-endpoint is not empty
};

// Parses the arguments of the command `what`. The error is kInvalidArgument and names the
// option.
Result<ControlOptions> parse_control_options(UserRequest::What what,
                                             const std::vector<std::string>& arguments);

// Returns the text after "ddprun <command> " in the list of commands.
std::string control_usage(UserRequest::What what);
// Returns the text of `ddprun <command> --help`.
std::string control_help(UserRequest::What what);

}  // namespace ddprun
