// The program ddprun. See --help.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/signal_names.h"
#include "base/version.h"
#include "base/worker_env.h"
#include "base/worker_page.h"
#include "base/write_all.h"
#include "launcher/agent/agent.h"
#include "launcher/agent/report_file.h"
#include "launcher/cluster/core/cluster_plan.h"
#include "launcher/cluster/local_tasks.h"
#include "launcher/cluster/starter.h"
#include "launcher/guard/control_place.h"
#include "launcher/guard/guardian.h"
#include "launcher/guard/run_cgroup.h"
#include "launcher/main/dry_run.h"
#include "launcher/main/help.h"
#include "launcher/main/over_ssh.h"
#include "launcher/main/print_config.h"
#include "launcher/main/subcommand.h"
#include "launcher/node_check/gpus.h"
#include "launcher/options/command_line.h"
#include "launcher/options/core/command_names.h"
#include "launcher/output/json_lines.h"
#include "launcher/plan/binding.h"
#include "launcher/plan/job_plan.h"
#include "launcher/plan/program.h"
#include "launcher/process/core/shell_words.h"
#include "launcher/process/signal_source.h"
#include "launcher/process/slurm_step.h"
#include "launcher/ssh/head.h"
#include "launcher/ssh/remote.h"
#include "rendezvous/auth/key_file.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {
namespace {

int fail(const Error& error, ExitCode code) { return ddprun::fail("ddprun", error, code); }

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

int print_binding(const LaunchOptions& options) {
  const Result<std::string> drawing = show_binding(options);
  return drawing ? print(*drawing)
                 : fail(drawing.error(), usage_or(ExitCode::kFiles, drawing.error()));
}

std::string version_text() {
  return std::string("ddprun ") + kVersion + ", control protocol " +
         std::to_string(kControlProtocol) + ", worker page " + std::to_string(kWorkerPageVersion) +
         "\n";
}

ReportFile report_of(const LaunchOptions& options) {
  return {options.report_file, options.rdzv_id, host_name()};
}

// Reports a job that cannot be started: in the file of --report-file too, unless this is a dry
// run. Returns the exit code.
int refuse(const Error& error, const LaunchOptions& options) {
  const ExitCode code = usage_or(ExitCode::kFiles, error);
  if (options.command == LaunchCommand::kRun) {
    const Result<WorkerCommand> program = find_program(options);
    const Result<void> written = report_of(options).end(
        {.exit_code = to_int(code),
         .headline = error.message(),
         .no_program = !program && program.error().kind == ErrorKind::kNotFound});
    if (!written) std::fprintf(stderr, "ddprun: %s\n", written.error().message().c_str());
  }
  return fail(error, code);
}

// Returns a line in which a guard (guardian or keeper) reports something. A guard writes only
// when the agent no longer can. The agent may have died while it drew its status line, so that
// line is erased first.
std::string guards_line(const AgentConfig& config, const std::string& text) {
  if (config.options.log_format == LogFormat::kJson) {
    return JsonLines(config.options.rdzv_id, host_name()).own_line(LogLevel::kError, text);
  }
  return (config.look.live ? "\r\x1b[Jddprun: " : "ddprun: ") + text + "\n";
}

// stops: Ctrl-Z stops the guardian, too.
int run_job(AgentConfig config, bool stops) {
  // From here on there are files to remove at the end, so no signal may end this process
  // directly. Signals stay pending until the guardian takes them.
  block_signals(config.signals);
  if (const Result<void> begun = report_of(config.options).write_running(); !begun) {
    return fail(begun.error(), ExitCode::kFiles);
  }
  const Result<UniqueFd> log_lock = make_log_directory(config);
  if (!log_lock) return fail(log_lock.error(), ExitCode::kFiles);
  const std::optional<RunDirectory> cgroup = make_run_cgroup();
  if (cgroup) config.cgroup = cgroup->path;
  const ControlHome home = find_control_home();
  if (!home.remark.empty()) config.rendezvous.remarks.push_back(home.remark);
  config.control_socket = control_socket_path(home, config.options.rdzv_id, getpid());
  GuardianOptions guard{config.signals, config.manager, config.scratch_directory, config.cgroup,
                        config.control_socket};
  // A terminal sends SIGWINCH only to its foreground process group, which is the guardian's.
  // Only that group may read the terminal.
  guard.forwarded.push_back(SIGWINCH);
  guard.stops = stops && !config.look.live;  // before that, the agent removes its status line
  guard.passes_input =
      config.options.passes_stdin && config.options.pty && isatty(STDIN_FILENO) != 0;
  guard.line_of = [&config](const std::string& text) { return guards_line(config, text); };
  return run_guarded(guard, [&](Guards guards) { return run_agent(config, std::move(guards)); });
}

// Starts a ddprun over ssh on each host of --hosts, and waits for them.
int start_over_ssh(const CommandLine& line) {
  const LaunchOptions& options = line.options;
  Result<HeadJob> job = plan_over_ssh(line);
  if (!job) return fail(job.error(), usage_or(ExitCode::kFiles, job.error()));
  if (options.command == LaunchCommand::kDryRun) return print(ssh_text(*job));
  job->line_of = [&options](bool is_error, const std::string& text) {
    if (options.log_format == LogFormat::kJson) {
      return JsonLines(options.rdzv_id, host_name())
          .own_line(is_error ? LogLevel::kError : LogLevel::kInfo, text);
    }
    return (is_error ? "ddprun: error: " : "ddprun: ") + text + "\n";
  };
  if (!options.report_file.empty())
    job->keep_report = [&options](const std::string& report) {
      return report_of(options).write(report);
    };
  unsetenv(kKeyVariable);  // it has no effect here, and ssh might pass it on
  const Result<int> code = run_head(*job);
  return code ? *code : fail(code.error(), ExitCode::kCannotStart);
}

// Plans the agent of the far end of ssh.
Result<NodeAgent> prepare_node(NodeJob job) {
  Result<CommandLine> line = parse_command_line(job.arguments);
  if (!line) return line.error();
  // The variable is read and removed at once. It is not in what /proc shows of the environment.
  if (!job.key.empty()) setenv(kKeyVariable, job.key.c_str(), 1);
  explicit_bzero(job.key.data(), job.key.size());
  Result<AgentConfig> config = plan_job(line->options);
  if (!config) return config.error();
  if (job.listener.valid()) {
    config->service_socket = std::make_shared<UniqueFd>(std::move(job.listener));
    config->service_address = job.address;
  }
  const Duration grace = config->options.grace.value_or(config->default_grace);
  // Without a shell, nothing waits for the guardian to stop. It must end all if the far end is
  // killed.
  std::string report_file = config->options.report_file;
  return NodeAgent{
      [config = std::move(*config)]() mutable { return run_job(std::move(config), false); }, grace,
      std::move(report_file)};
}

// Starts a ddprun with these arguments on each node of the scheduler's job, and waits for them.
int start_nodes(const CommandLine& line, std::vector<std::string> arguments) {
  const LaunchOptions& options = line.options;
  const ClusterPlan& plan = *options.cluster;
  // What a dry run prints is what a run executes.
  if (options.command == LaunchCommand::kDryRun)
    if (const auto word = std::ranges::find(arguments, "--dry-run"); word != arguments.end())
      arguments.erase(word);
  const std::vector<std::string> command = starter_command(plan, arguments);
  std::string text = to_sentence(plan, 0, options.taken) + ":";
  for (const std::string& word : command) text += " " + in_shell_words(word);
  if (options.command == LaunchCommand::kDryRun) return print("ddprun: " + text + "\n");
  const std::string own_line =
      options.log_format == LogFormat::kJson
          ? JsonLines(plan.job_id, host_name()).own_line(LogLevel::kInfo, text)
          : "ddprun: " + text + "\n";
  std::fputs(own_line.c_str(), stderr);
  std::vector<int> signals(kPassedSignals.begin(), kPassedSignals.end());
  signals.insert(signals.end(), {SIGUSR1, SIGUSR2});
  const Result<int> code = run_starter(plan, command, signals, options.passes_stdin);
  return code ? *code : fail(code.error(), ExitCode::kCannotStart);
}

// Waits for the ddprun of local task 0, which runs the workers of this node.
int wait_for_task_0(const LaunchOptions& options) {
  const ClusterPlan& plan = *options.cluster;
  // That ddprun may come late, as any node. It reports wrong options.
  const Result<Rendezvous> rendezvous = plan_rendezvous(options);
  const Duration patience = rendezvous ? rendezvous->join_timeout : kDefaultJoinTimeout;
  // The scheduler sends signals to that ddprun, too.
  block_signals({kPassedSignals.begin(), kPassedSignals.end()});
  block_signals({kRelayedSignals.begin(), kRelayedSignals.end()});
  const Result<int> code = wait_for_agent(plan.job_id, patience);
  if (code) return *code;
  const Error error = Error(code.error()).within("the ddprun of local task 0").within(plan.name);
  return fail(error,
              error.kind == ErrorKind::kTimeout ? ExitCode::kCannotStart : ExitCode::kInternal);
}

int plan_and_run(const LaunchOptions& options) {
  Result<AgentConfig> config = plan_job(options);
  if (!config) return refuse(config.error(), options);
  return run_job(std::move(*config), true);
}

// Runs the job, and tells its exit code to the other tasks that the scheduler started here.
int run_with_tasks(const LaunchOptions& options) {
  const bool has_others =
      options.cluster && options.taken != Taken::kWorkers && options.cluster->own_tasks > 1;
  if (!has_others) return plan_and_run(options);
  const ClusterPlan& plan = *options.cluster;
  Result<LocalTasks> others = LocalTasks::listen(plan.job_id, plan.own_tasks - 1);
  if (!others) return fail(others.error(), ExitCode::kCannotStart);
  const int code = plan_and_run(options);
  others->end(code);
  return code;
}

int run(const std::vector<std::string>& arguments) {
  using enum LaunchCommand;
  for (const std::string& name :
       inherited_variables(environment_variable, title_of_slurm_manager())) {
    unsetenv(name.c_str());
  }
  if (!arguments.empty()) {
    const std::string& word = arguments.front();
    if (word == kGpuCheckCommand) run_gpu_check({arguments.begin() + 1, arguments.end()});
    if (word == kGpuSpeedsCommand && arguments.size() == 1)
      return write_all(STDOUT_FILENO, gpu_speeds_line(measure_gpus("/proc/self/exe")))
                 ? 0
                 : to_int(ExitCode::kFiles);
    if (word == kNodeCommand && arguments.size() == 1) return run_far_end(prepare_node);
    if (const RunCommand run_command = find_command(word))
      return run_command({arguments.begin() + 1, arguments.end()});
    if (const std::string_view meant = meant_command(word); !meant.empty())
      return fail(
          invalid_argument("'" + word + "' is not a command; type: ddprun " + std::string(meant) +
                           " (to run a program of this name: ddprun ./" + word + ")"),
          ExitCode::kUsage);
  }
  Result<CommandLine> line = parse_command_line(arguments);
  if (!line) return fail(line.error(), ExitCode::kUsage);
  const LaunchCommand command = line->options.command;
  switch (command) {
    case kHelp: return print(help_text());
    case kVersion: return print(version_text());
    case kPrintConfig: return print(format_config(*line));
    case kShowBinding: return print_binding(line->options);
    case kDryRun:
    case kRun: break;
  }
  const LaunchOptions& options = line->options;
  if (options.uses_ssh()) return start_over_ssh(*line);
  if (!options.copies.empty())
    return fail(invalid_argument("needs --hosts or --hostfile").within("--copy"), ExitCode::kUsage);
  if (options.cluster && options.taken == Taken::kStarter) return start_nodes(*line, arguments);
  if (options.cluster && options.taken == Taken::kWait) {
    return command == kRun
               ? wait_for_task_0(options)
               : print("ddprun: " + options.cluster->name + ": waits for local task 0\n");
  }
  if (command == kRun) return run_with_tasks(options);
  const Result<AgentConfig> config = plan_job(options);
  return config ? print(dry_run_text(*config)) : refuse(config.error(), options);
}

}  // namespace
}  // namespace ddprun

namespace {

// Resets inherited process state (signal actions, closed standard streams) to what ddprun
// expects.
void make_ordinary() {
  // If SIGCHLD stayed ignored, the kernel would reap the children that ddprun waits for.
  std::signal(SIGCHLD, SIG_DFL);
  // Makes a file that may not grow further (ulimit -f) an error of write(), like a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  // If a standard stream is closed, the next open() would reuse its descriptor.
  int fd = 0;
  do {
    fd = open("/dev/null", O_RDWR);
  } while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  make_ordinary();
  return ddprun::run(std::vector<std::string>(argv + 1, argv + argc));
}
