// The near end of ssh: starts an ssh for each host, gives each far end its plan, merges their
// output line by line, and passes signals on. core/head decides, this performs. Main thread only,
// while the process has one thread. Threads of its own write the output.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/result.h"
#include "launcher/ssh/core/head.h"
#include "launcher/ssh/core/ssh_command.h"
#include "launcher/ssh/protocol.h"

namespace ddprun {

struct HeadJob {
  HeadOptions options;
  SshOptions ssh;
  NodePlan plan;                                    // what all hosts get
  std::vector<std::vector<std::string>> arguments;  // of each host's ddprun, by node rank
  std::string files;                                // contents of plan.files, one after the other
  std::vector<int> signals;                         // that end the job
  bool shows_ssh = false;  // --verbose: prints what ssh says before the agents start
  bool is_quiet = false;
  // Keeps the report of the job, which node 0 has sent. Empty: no report is wanted here.
  std::function<Result<void>(const std::string& report)> keep_report;
  // Formats a line of this ddprun itself, with its newline.
  std::function<std::string(bool is_error, const std::string& text)> line_of;
};

// Reads the file for `--copy path`: its entry, and its contents. kInvalidArgument, kSystem.
Result<std::pair<CopiedFile, std::string>> read_copy(const std::string& path);

// Runs the job on all hosts until it ends, and returns its exit code: that of the first agent that
// did not end with 0. Fails if no ssh can be started. When this process is killed, the kernel ends
// its ssh processes, and each far end then ends its agent.
Result<int> run_head(const HeadJob& job);

}  // namespace ddprun
