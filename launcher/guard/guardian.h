// The guardian: what stands between the user's process and an agent that may be killed.
//
//   ddprun (guardian, the process that the user started; its exit code is the job's)
//     `- keeper       (own session; waits)
//          `- agent   (own process group; does the work)
//               `- workers, and whatever they start
//
// All three are child subreapers, and each notices when another one is killed: a pipe whose writing
// end only the watched process holds ends. Then the survivors end every process below them:
//   agent killed:     its descendants fall to the keeper, which kills and reaps them
//   keeper killed:    the agent kills its workers and leaves; the guardian takes what falls to it
//   guardian killed:  the agent kills its workers and leaves; the keeper makes sure
//   any two at once:  the third one does it
// All three at once leave only what the kernel does by itself: workers die with their agent
// (PR_SET_PDEATHSIG), but processes that they started live on unless a container, a PID namespace
// or a cgroup ends them. docs/failure_model.md says so to users.
//
// Two guards instead of one, because then no privilege and no cgroup is needed to survive the loss
// of agent and guardian at the same instant (docs/decisions/0002-keeper.md).
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <vector>

#include "base/unique_fd.h"

namespace ddprun {

// What the agent has to watch.
struct Guards {
  UniqueFd guardian_alive;  // readable (end of file) once the guardian is gone
  UniqueFd keeper_alive;
  pid_t guardian = 0;  // which passes the user's signals on
  UniqueFd input;      // what is typed into the guardian's terminal; invalid: not asked for
};

struct GuardianOptions {
  // Signals that are passed on to the agent. Those that are ignored when ddprun starts (nohup) stay
  // so.
  std::vector<int> forwarded;
  // Whose signals are not, because it has sent them to the agent, too; 0: nobody.
  pid_t manager = 0;
  // Removed with everything in it when the job is over, by whoever is left.
  std::string scratch_directory;
  // Its control group: killed as one where somebody has to end everything, and removed.
  std::string cgroup;
  // The agent's (launcher/guard/control_place.h), removed likewise.
  std::string control_socket;
  // The guardian reads the terminal that is its standard input, for the agent, which may not: it is not
  // in the terminal's foreground group.
  bool passes_input = false;
  // Ctrl-Z: the agent stops the guardian, when it has taken its status line off the terminal.
  bool agent_stops_it = false;
  // Makes a line of what a guard has to say, with its newline.
  std::function<std::string(const std::string& text)> line_of;
};

// Starts keeper and agent, forwards signals, and returns the exit code: the agent's own, or
// ExitCode::kInternal with a line on stderr when the agent or the keeper was killed. `agent` runs
// in the agent's process and returns its exit code. Call once, from the only thread.
int run_guarded(const GuardianOptions& options, const std::function<int(Guards)>& agent);

}  // namespace ddprun
