// Parses the command lines of the commands for a running job: `ddprun status`, `top`, `logs` and so
// on. `top` and `dashboard` make requests for the status, `trace` for the flight records, and each
// other command that of its name. Pure functions of their arguments; any thread.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/result.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

enum class ControlCommand {
  kStatus,
  kStop,
  kRestart,
  kSignal,
  kLogs,
  kFlight,
  kStacks,
  kTop,
  kDashboard,
  kTrace,
};
inline constexpr EnumNames<ControlCommand, 10> kControlCommandWords{
    {{ControlCommand::kStatus, "status"},
     {ControlCommand::kStop, "stop"},
     {ControlCommand::kRestart, "restart"},
     {ControlCommand::kSignal, "signal"},
     {ControlCommand::kLogs, "logs"},
     {ControlCommand::kFlight, "flight"},
     {ControlCommand::kStacks, "stacks"},
     {ControlCommand::kTop, "top"},
     {ControlCommand::kDashboard, "dashboard"},
     {ControlCommand::kTrace, "trace"}}};

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
  bool once = false;       // of top
  bool opens = false;      // of dashboard: starts a browser
  LaunchOptions service;   // how to reach the service; used if --rdzv-endpoint is not empty
  std::vector<std::string> service_arguments;  // the options that were set in `service`
};

// Parses the arguments of the command. The error is kInvalidArgument and names the option.
Result<ControlOptions> parse_control_options(ControlCommand command,
                                             const std::vector<std::string>& arguments);

// Returns the text after "ddprun <command> " in the list of commands.
std::string control_usage(ControlCommand command);
// Returns the text of `ddprun <command> --help`.
std::string control_help(ControlCommand command);

}  // namespace ddprun
