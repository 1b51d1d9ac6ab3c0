#include "launcher/worker/process.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <csignal>
#include <map>

#include "base/assert.h"
#include "base/parse_number.h"
#include "base/pidfd.h"
#include "base/small_file.h"
#include "launcher/plan/exec_diagnosis.h"
#include "launcher/process/cpu_affinity.h"
#include "launcher/worker/shared_clone.h"

extern "C" char** environ;  // NOLINT: declared by unistd.h for _GNU_SOURCE only

namespace ddprun {

namespace process = boost::process::v2;
using boost::system::error_code;

namespace {

// Returns the signals that the agent ignores, or has inherited as ignored, and that workers must
// not ignore. exec itself resets handled signals to the default. The set of ignored signals does
// not change while an agent has workers.
const std::vector<int>& signals_to_reset() {
  static const std::vector<int> signals = [] {
    std::vector<int> found;
    for (int signal = 1; signal < NSIG; ++signal) {
      // These may be ignored on purpose: by nohup, or by a shell for a background process.
      if (signal == SIGHUP || signal == SIGINT || signal == SIGQUIT) continue;
      struct sigaction action {};
      if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN) {
        found.push_back(signal);
      }
    }
    return found;
  }();
  return signals;
}

// The work of the child before exec. It runs in the agent's memory, so it may make only
// async-signal-safe calls and must not allocate.
struct WorkerInitializer {
  const WorkerStart& start;
  int in = -1;
  pid_t agent = 0;
  const char* const* environment = nullptr;
  const CpuAffinity& affinity;
  const std::vector<int>& reset;
  const std::string& oom_score;  // empty: unchanged

  // The step that failed, for the parent to read.
  const char* step = nullptr;
  int step_errno = 0;

  bool failed(const char* what) {
    step = what;
    step_errno = errno;
    return false;
  }

  bool on_exec_setup() {
    const LaunchOptions& options = start.options;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The agent may have died before the line above. Then the kernel would not kill this
    // process.
    if (getppid() != agent) leave_shared(1);
    setsid();
    raise_oom_score();
    if (!affinity.take()) return failed("bind it to its CPUs");
    if (options.pty && ioctl(start.out, TIOCSCTTY, 0) != 0) {
      return failed("give it its terminal");
    }
    if (dup2(in, STDIN_FILENO) < 0 || dup2(start.out, STDOUT_FILENO) < 0 ||
        dup2(start.err, STDERR_FILENO) < 0) {
      return failed("give it its streams");
    }
    close_all_but_streams();
    if (start.descriptor_limit) setrlimit(RLIMIT_NOFILE, &*start.descriptor_limit);
    if (options.file_mask) umask(*options.file_mask);
    if (!options.directory.empty() && chdir(options.directory.c_str()) != 0) return failed("chdir");
    for (const int signal : reset) {
      struct sigaction action {};
      action.sa_handler = SIG_DFL;
      sigaction(signal, &action, nullptr);
    }
    sigset_t blocked;
    sigemptyset(&blocked);
    if (options.checkpoint_signal != 0) sigaddset(&blocked, options.checkpoint_signal);
    sigprocmask(SIG_SETMASK, &blocked, nullptr);
    return true;
  }

  // Raising it needs no privilege. If it fails, the worker runs all the same.
  void raise_oom_score() const {
    if (oom_score.empty()) return;
    const int file = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (file < 0) return;
    [[maybe_unused]] const ssize_t written = write(file, oom_score.data(), oom_score.size());
    close(file);
  }

  // exec closes all descriptors that ddprun opened. This closes those that ddprun inherited.
  // Before Linux 5.9 they are closed one by one, up to the descriptor limit.
  void close_all_but_streams() const {
    constexpr unsigned kFirst = STDERR_FILENO + 1;
    if (syscall(SYS_close_range, kFirst, ~0U, 0U) == 0) return;
    const rlim_t end = start.descriptor_limit ? start.descriptor_limit->rlim_cur : 1024;
    for (rlim_t fd = kFirst; fd < end; ++fd) close(static_cast<int>(fd));
  }
};

// Returns the text that the child writes, because the child cannot format text. The kernel then
// kills workers before the agent, which must report why they ended.
std::string raised_oom_score() {
  constexpr int kMost = 1000;  // stands for the whole memory
  constexpr int kRaise = 100;
  const auto own = parse_number<int>(first_line_of("/proc/self/oom_score_adj"));
  return own ? std::to_string(std::min(kMost, *own + kRaise)) : "";
}

// Environment: this process's environment, overridden by the given variables, in the form that
// execve() takes.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<std::string, std::string>>& variables) {
    std::map<std::string, std::string> merged;
    for (char** entry = environ; entry && *entry; ++entry) {
      const std::string text(*entry);
      const std::size_t at = text.find('=');
      if (at != std::string::npos) merged[text.substr(0, at)] = text.substr(at + 1);
    }
    for (const auto& [name, value] : variables) merged[name] = value;
    for (const auto& [name, value] : merged) texts_.push_back(name + "=" + value);
    for (const std::string& text : texts_) pointers_.push_back(text.c_str());
    pointers_.push_back(nullptr);
  }
  const char* const* get() const { return pointers_.data(); }

 private:
  std::vector<std::string> texts_;
  std::vector<const char*> pointers_;
};

using Handle = process::basic_process<boost::asio::io_context::executor_type>;

// Replaces Boost's launcher, which forks. In a child that shares memory, Boost would also renew
// Asio's descriptors, which are the agent's.
struct WorkerLauncher : process::posix::default_launcher {
  Result<Handle> operator()(boost::asio::io_context& io, WorkerInitializer& initializer) {
    struct Child {
      const char* executable;
      const char* const* arguments;
      WorkerInitializer& initializer;
    };
    const WorkerStart& start = initializer.start;
    const process::filesystem::path executable(start.executable);
    Child child{executable.c_str(), build_argv_(executable, start.plan.arguments), initializer};
    Result<ClonedChild> made = start_sharing_memory(
        start.cgroup,
        [](void* argument) {
          auto& [path, arguments, setup] = *static_cast<Child*>(argument);
          if (!setup.on_exec_setup()) leave_shared(127);
          execve(path, const_cast<char* const*>(arguments),
                 const_cast<char* const*>(setup.environment));
          setup.failed("exec");
          leave_shared(127);
        },
        &child);
    if (!made) return made.error();
    if (initializer.step) {
      waitpid(made->pid, nullptr, 0);
      return Error{};
    }
    return Handle(io.get_executor(), made->pid, made->pidfd.release());
  }
};

// Describes the step that failed in the child, and what would be right.
Error failed_step(const WorkerStart& start, const std::string& step, int step_errno) {
  Error error = system_error(step, step_errno);
  if (step == "exec") {
    error.doing += " " + start.executable;
    error.cause = exec_diagnosis(start.executable, start.options.directory, step_errno);
  } else if (step == "chdir") {
    error.doing += " " + start.options.directory;
  }
  return error;
}

}  // namespace

// Shared with the pending wait.
struct WorkerProcess::State : std::enable_shared_from_this<State> {
  State(boost::asio::io_context& io, Handle the_handle)
      : handle(std::move(the_handle)), pidfd(io) {}

  // Boost's own wait blocks in waitpid() once the pidfd was reported as readable. Asio may report
  // that by mistake. An event of a descriptor that was closed in the same turn reaches the one that
  // has taken its place.
  void wait(std::function<void(int)> then) {
    pidfd.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                     [self = shared_from_this(), then = std::move(then)](error_code error) mutable {
                       if (self->let_go) return;
                       DDPRUN_ASSERT(!error, "a pidfd can be waited for");
                       int status = 0;
                       const pid_t reaped = ::waitpid(self->handle.id(), &status, WNOHANG);
                       if (reaped == 0) return self->wait(std::move(then));
                       DDPRUN_ASSERT(reaped == self->handle.id(), "only the agent reaps a worker");
                       then(status);
                     });
  }

  Handle handle;
  boost::asio::posix::stream_descriptor pidfd;
  bool let_go = false;
};

WorkerProcess::WorkerProcess(std::shared_ptr<State> state) : state_(std::move(state)) {}

WorkerProcess::~WorkerProcess() {
  if (!state_) return;
  state_->let_go = true;
  error_code ignored;
  state_->pidfd.close(ignored);
  state_->handle.detach();  // Boost's destructor would kill it and wait without limit
}

pid_t WorkerProcess::id() const { return state_->handle.id(); }

void WorkerProcess::when_ended(std::function<void(int)> then) { state_->wait(std::move(then)); }

Result<WorkerProcess> WorkerProcess::start(boost::asio::io_context& io, const WorkerStart& start) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return system_error("open /dev/null", errno);
  const Environment environment(start.plan.variables);
  const CpuAffinity affinity(start.plan.cpus);
  const std::string oom_score = raised_oom_score();
  WorkerInitializer initializer{.start = start,
                                .in = start.in < 0 ? null.get() : start.in,
                                .agent = getpid(),
                                .environment = environment.get(),
                                .affinity = affinity,
                                .reset = signals_to_reset(),
                                .oom_score = oom_score};
  Result<Handle> handle = WorkerLauncher()(io, initializer);
  if (handle) {
    UniqueFd pidfd = pidfd_of(handle->id());
    // On an error, the handle's destructor ends the process.
    if (!pidfd.valid()) return system_error("open a pidfd of " + start.executable, errno);
    const auto state = std::make_shared<State>(io, std::move(*handle));
    error_code failed;
    state->pidfd.assign(pidfd.get(), failed);
    if (failed) return system_error("wait for the end of " + start.executable, failed.value());
    (void)pidfd.release();
    return WorkerProcess(state);
  }
  if (initializer.step) return failed_step(start, initializer.step, initializer.step_errno);
  Error error = std::move(handle).error().within("start " + start.executable);
  if (error.sys_errno == EAGAIN) {
    const std::string limits = limits_of_processes();
    error.cause += limits.empty() ? ": too many processes" : ": " + limits;
  }
  return error;
}

}  // namespace ddprun
