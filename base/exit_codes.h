// The list of all exit codes of ddprun's programs. `ddprun --help` is made from this table, and
// a test compares docs/reference/exit_codes.md with it.
//
// A failed job ends with the exit code of its first failed worker, or with 128+n when signal n
// ended that worker. The codes here are for the other cases. 64..78 follow sysexits.h where a
// meaning fits.
#pragma once

#include <array>
#include <string_view>

namespace ddprun {

enum class ExitCode : int {
  kSuccess = 0,
  kUsage = 2,
  kCannotStart = 64,
  kJoinTimeout = 65,
  kRefused = 66,
  kServiceLost = 67,
  kNodeLost = 68,
  kAddress = 69,
  kInternal = 70,
  kHung = 71,
  kNoJob = 72,
  kFiles = 73,
  kNoAnswer = 74,
  kSaved = 75,
  kUnwell = 78,
};

struct ExitCodeText {
  ExitCode code;
  std::string_view meaning;
};

inline constexpr std::array kExitCodes = std::to_array<ExitCodeText>({
    {ExitCode::kSuccess, "every worker ended with 0"},
    {ExitCode::kUsage, "usage error: an option, a value or the program is invalid"},
    {ExitCode::kCannotStart, "a process could not be started (exec, fork, limits)"},
    {ExitCode::kJoinTimeout, "not all requested nodes joined in time"},
    {ExitCode::kRefused,
     "the rendezvous service refused this node, or this node refused its TLS; the error says why"},
    {ExitCode::kServiceLost, "the rendezvous service, or the node that hosts it, was lost"},
    {ExitCode::kNodeLost, "a node of the job was lost, and no restart was left"},
    {ExitCode::kAddress, "an address cannot be resolved, or a port cannot be listened on"},
    {ExitCode::kInternal, "ddprun itself was killed or broken; no worker was left behind"},
    {ExitCode::kHung, "--hang-timeout: workers hung, and no restart was left"},
    {ExitCode::kNoJob, "ddprun status, logs, stop, restart, signal, flight, stacks: no such job"},
    {ExitCode::kFiles,
     "a file or a directory (logs, state, temporary files) cannot be used, or output was lost"},
    {ExitCode::kNoAnswer, "a command for a running job got no answer, was refused, or timed out"},
    {ExitCode::kSaved, "workers were asked to save and succeeded: start the job again"},
    {ExitCode::kUnwell, "ddprun doctor found a problem, or ddprun-ckpt found damage"},
});

constexpr int to_int(ExitCode code) { return static_cast<int>(code); }

// Returns the exit code of a process that was ended by a signal, or that ended because of one.
// Shells use the same code.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

}  // namespace ddprun
