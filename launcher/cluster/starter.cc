#include "launcher/cluster/starter.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <utility>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/pipe.h"
#include "base/signal_names.h"
#include "base/spawn_program.h"
#include "base/split.h"
#include "base/wait_status.h"
#include "launcher/cluster/slurm_command.h"
#include "launcher/cluster/slurm_time_limit.h"
#include "launcher/process/command_output.h"
#include "launcher/process/core/shell_words.h"
#include "launcher/process/exec.h"
#include "launcher/process/own_program.h"
#include "launcher/process/signal_source.h"

namespace ddprun {
namespace {

std::string name_of_step() { return concat("ddprun-", getpid()); }

// Executes the command in this process. Returns only if that fails, with errno.
int execute(const std::vector<std::string>& command, bool passes_stdin, pid_t starter) {
  prepare_child(starter);
  // srun would take the lines that a script has for itself. A process of the background that reads
  // the terminal would be stopped.
  if (!passes_stdin || isatty(STDIN_FILENO) == 1) {
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);
  }
  std::signal(SIGTTOU, SIG_IGN);
  const std::vector<char*> arguments = exec_arguments(command);
  execvp(arguments.front(), arguments.data());
  return errno;
}

// Returns the id of the step that the command made: "812.0". Empty: it made none yet.
std::string step_of(const std::string& job) {
  const std::string ending = "|" + name_of_step();
  const CommandOutput steps = output_of(
      slurm_command({"squeue", "--steps", "--noheader", "--jobs=" + job, "--format=%i|%j"}),
      Deadline(kSlurmPatience));
  for (std::string_view line : split(steps.text, '\n')) {
    line = line.substr(0, line.find_last_not_of(' ') + 1);
    if (line.ends_with(ending)) return std::string(line.substr(0, line.size() - ending.size()));
  }
  return "";
}

// Returns whether the signal went to the tasks of all nodes.
bool signal_tasks(const std::string& job, int signal) {
  const std::string step = step_of(job);
  if (step.empty()) return false;
  const std::string option = concat("--signal=", signal);
  return output_of(slurm_command({"scancel", option, step}), Deadline(kSlurmPatience)).exit_code ==
         0;
}

}  // namespace

std::vector<std::string> starter_command(const ClusterPlan& plan,
                                         const std::vector<std::string>& arguments) {
  std::vector<std::string> variables = plan.starter_variables;
  // srun gives the step's name to its tasks. A program may name its files by the job.
  if (const char* name = std::getenv("SLURM_JOB_NAME"); name && plan.starter_is_srun)
    variables.push_back(concat("SLURM_JOB_NAME=", name));
  std::vector<std::string> ddprun;
  const auto append = [&](const std::vector<std::string>& words) {
    ddprun.insert(ddprun.end(), words.begin(), words.end());
  };
  if (!variables.empty()) append({"env"});
  append(variables);
  append({own_program()});
  append(arguments);

  std::vector<std::string> command = plan.starter;
  if (plan.starter_is_srun) {
    command.push_back("--job-name=" + name_of_step());
    command.insert(command.end(), ddprun.begin(), ddprun.end());
    return command;
  }
  std::string line;
  for (const std::string& word : ddprun) line += (line.empty() ? "" : " ") + in_shell_words(word);
  command.push_back(line);
  return command;
}

Result<int> run_starter(const ClusterPlan& plan, const std::vector<std::string>& command,
                        const std::vector<int>& signals, bool passes_stdin) {
  std::vector<int> caught = without_ignored(signals);
  caught.push_back(SIGCHLD);
  const Result<UniqueFd> source = open_signal_source(caught);
  if (!source) return source.error();
  Result<Pipe> failed = make_pipe();  // errno of an exec that failed
  if (!failed) return failed.error();

  const pid_t own = getpid();
  const pid_t pid = fork();
  if (pid < 0) return system_error("fork", errno);
  if (pid == 0) {
    const int exec_errno = execute(command, passes_stdin, own);
    [[maybe_unused]] const ssize_t written =
        write(failed->write.get(), &exec_errno, sizeof exec_errno);
    _exit(to_int(ExitCode::kCannotStart));
  }
  failed->write.reset();
  int exec_errno = 0;
  const bool is_started = read(failed->read.get(), &exec_errno, sizeof exec_errno) == 0;

  bool was_interrupted = false;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    pollfd watched{source->get(), POLLIN, 0};
    poll(&watched, 1, -1);
    while (const std::optional<TakenSignal> signal = next_signal(source->get())) {
      if (signal->number == SIGCHLD) continue;
      const bool ends = std::ranges::count(kPassedSignals, signal->number) > 0;
      if (!plan.starter_is_srun) {
        kill(pid, signal->number);  // it passes signals on by itself
        continue;
      }
      // Slurm repeats SIGTERM by itself. Only a person presses Ctrl-C twice.
      const bool insists = signal->number == SIGINT && std::exchange(was_interrupted, true);
      // Before there is a step, only srun can be ended.
      if (insists || (!signal_tasks(plan.job_id, signal->number) && ends)) kill(pid, SIGTERM);
    }
  }
  if (!is_started) {
    const char* const name = plan.starter_is_srun ? "srun" : command.front().c_str();
    return system_error(concat("start ", name, " (for this node alone, add --nnodes=1)"),
                        exec_errno)
        .within(plan.name);
  }
  return exit_code_of_status(status);
}

}  // namespace ddprun
