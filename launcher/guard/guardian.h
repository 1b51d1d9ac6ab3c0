// The guardian: the process between the user's shell and an agent that may be killed.
//
//   ddprun (guardian, the process that the user started; its exit code is the job's)
//     `- keeper       (own session; waits)
//          `- agent   (own process group; does the work)
//               `- workers, and the processes that they start
//
// All three are child subreapers. Each notices when another one is killed: only the watched
// process holds the writing end of a pipe, so the pipe ends with it. Then the survivors end
// every process below them:
//   agent killed:     the keeper adopts the agent's descendants, kills them and reaps them
//   keeper killed:    the agent kills its workers and exits; the guardian ends what it adopts
//   guardian killed:  the agent kills its workers and exits; the keeper ends what is left
//   any two killed:   the third one ends every process
//
// If all three are killed at once, only the kernel acts. Workers die with their agent
// (PR_SET_PDEATHSIG). Processes that the workers started live on, unless a container, a PID
// namespace or a cgroup ends them. docs/concepts/failure_model.md documents this for users.
//
// There are two guards, because two survive the loss of agent and guardian at the same instant
// without a privilege or a cgroup (docs/decisions/0002-keeper.md).
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ddprun {

// The facts that the agent needs to watch its guards.
struct Guards {
  UniqueFd guardian_alive;  // readable (end of file) once the guardian is gone
  UniqueFd keeper_alive;
  pid_t guardian = 0;  // its pid; it forwards the user's signals
  UniqueFd input;      // input of the guardian's terminal; invalid: not requested
};

struct GuardianOptions {
  // Signals that the guardian forwards to the agent. Signals that are ignored when ddprun starts
  // (nohup) stay ignored.
  std::vector<int> forwarded;
  // The process whose signals are not forwarded, because it sends them to the agent too; 0:
  // none.
  pid_t manager = 0;
  // Removed with its contents when the job is over, by the process (guardian, keeper or agent) that
  // is left.
  std::string scratch_directory;
  // The run's control group: killed as a whole if a guard has to end everything, and then
  // removed.
  std::string cgroup;
  // The agent's control socket (launcher/guard/control_place.h), removed likewise.
  std::string control_socket;
  // Whether the guardian reads its standard input, a terminal, for the agent. The agent may not
  // read it, because it is not in the terminal's foreground process group.
  bool passes_input = false;
  // Ctrl-Z: whether the guardian stops itself. If there is a status line, the agent removes it
  // and then stops the guardian.
  bool stops = true;
  // Formats a guard's message as a line, with its newline.
  std::function<std::string(const std::string& text)> line_of;
};

// Starts keeper and agent, forwards signals, and returns the exit code. This is the agent's own
// code, or ExitCode::kInternal with a line on stderr if the agent or the keeper was killed.
// `agent` runs in the agent's process and returns its exit code. Call once, from the only
// thread.
int run_guarded(const GuardianOptions& options, const std::function<int(Guards)>& agent);

}  // namespace ddprun
