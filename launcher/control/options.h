// The command lines of `ddprun status`, `logs`, `stop`, `restart`, `signal` and `flight`. Any thread; touches
// nothing but its arguments.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "launcher/control/core/request.h"
#include "launcher/options/core/launch_options.h"

namespace ddprun {

struct ControlOptions {
  ControlRequest request;
  std::string job;  // an id, or the process id of a ddprun; empty: the only one
  bool json = false;
  bool wants_help = false;
  std::optional<Duration> timeout;  // of stop
  // Of flight: the records to read instead of a job's, of files or of processes that were started
  // without ddprun; how many calls of each rank; what of them.
  std::vector<std::string> files;
  std::vector<pid_t> processes;
  std::optional<int> last;
  bool only_compares = false;
  std::string trace_file;  // empty: none
  LaunchOptions service;   // where --rdzv-endpoint is not empty: the way to it
};

// what: none but the six. The error is kInvalidArgument and names the option.
Result<ControlOptions> parse_control_options(ControlRequest::What what,
                                             const std::vector<std::string>& arguments);

// What follows "ddprun <command> ", for the table of commands.
std::string control_usage(ControlRequest::What what);
// The text of `ddprun <command> --help`.
std::string control_help(ControlRequest::What what);

}  // namespace ddprun
