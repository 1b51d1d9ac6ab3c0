#include "launcher/worker_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <boost/process/v2/environment.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <boost/process/v2/process.hpp>
#include <cerrno>
#include <csignal>
#include <map>

#include "base/assert.h"
#include "base/pidfd.h"

extern "C" char** environ;  // NOLINT: declared by unistd.h for _GNU_SOURCE only

namespace ddprun {

namespace process = boost::process::v2;
using boost::system::error_code;

namespace {

// What happens in the child between fork and exec. Only async-signal-safe calls.
struct WorkerInitializer {
  int in = -1;
  int out = -1;
  int err = -1;
  pid_t agent = 0;
  const char* const* environment = nullptr;
  const rlimit* descriptor_limit = nullptr;

  template <class Launcher>
  error_code on_setup(Launcher& launcher, const process::filesystem::path&, const char* const*&) {
    launcher.env = environment;
    return {};
  }

  template <class Launcher>
  error_code on_exec_setup(Launcher& launcher, const process::filesystem::path&,
                           const char* const*&) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The agent may have died before the line above: then nobody would kill this process.
    if (getppid() != agent) _exit(1);
    setsid();
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(err, STDERR_FILENO) < 0) {
      return error_code(errno, boost::system::system_category());
    }
    close_all_but(launcher.fd_whitelist.back());
    // After that, because Boost opens a directory next, which under a low limit needs a low number.
    if (descriptor_limit) setrlimit(RLIMIT_NOFILE, descriptor_limit);
    for (int signal = 1; signal < NSIG; ++signal) {
      struct sigaction action {};
      if (sigaction(signal, nullptr, &action) != 0) continue;
      // nohup's SIGHUP stays ignored; what the agent itself ignores does not.
      if (action.sa_handler == SIG_IGN && signal == SIGHUP) continue;
      action = {};
      action.sa_handler = SIG_DFL;
      sigaction(signal, &action, nullptr);
    }
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    return {};
  }

  // Whatever is open beyond the streams and the pipe on which the launcher hears why exec failed
  // (Linux 5.9; before that the launcher closes one by one).
  static void close_all_but(int kept) {
    const auto first = static_cast<unsigned>(STDERR_FILENO + 1);
    const auto pipe = static_cast<unsigned>(kept);
    if (pipe > first) syscall(SYS_close_range, first, pipe - 1, 0U);
    syscall(SYS_close_range, std::max(first, pipe + 1), ~0U, 0U);
  }
};

// This process's environment with the variables over it, as execve wants it.
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

// Boost opens the new process's pidfd after the fork and throws away why it could not.
Error not_watched(const std::string& executable, pid_t pid, const error_code& thrown) {
  const UniqueFd again = pidfd_of(pid);
  return system_error("start " + executable + ": watch over its process",
                      again.valid() ? thrown.value() : errno);
}

}  // namespace

// Shared with the wait, which Boost ties to the handle's address.
struct WorkerProcess::State {
  explicit State(Handle the_handle) : handle(std::move(the_handle)) {}
  Handle handle;
  bool let_go = false;
};

WorkerProcess::WorkerProcess(std::shared_ptr<State> state) : state_(std::move(state)) {}

WorkerProcess::~WorkerProcess() {
  if (!state_) return;
  state_->let_go = true;
  state_->handle.detach();  // Boost's destructor would kill the process and wait for it, for ever
}

pid_t WorkerProcess::id() const { return state_->handle.id(); }

void WorkerProcess::when_ended(std::function<void(int)> then) {
  state_->handle.async_wait([state = state_, then = std::move(then)](error_code error, int) {
    if (state->let_go) return;
    DDPRUN_ASSERT(!error, "nobody else reaps a worker");
    then(state->handle.native_exit_code());
  });
}

Result<WorkerProcess> WorkerProcess::start(boost::asio::io_context& io, const WorkerStart& start) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return system_error("open /dev/null", errno);
  const Environment environment(start.variables);
  WorkerInitializer initializer{
      null.get(), start.out,         start.err,
      getpid(),   environment.get(), start.descriptor_limit ? &*start.descriptor_limit : nullptr};

  process::posix::default_launcher launcher;
  try {
    error_code error;
    Handle handle =
        launcher(io.get_executor(), error, start.executable, start.arguments, initializer);
    if (error) return system_error("start " + start.executable, error.value());
    return WorkerProcess(std::make_shared<State>(std::move(handle)));
  } catch (const boost::system::system_error& thrown) {
    if (launcher.pid <= 0) return system_error("start " + start.executable, thrown.code().value());
    kill(launcher.pid, SIGKILL);
    return not_watched(start.executable, launcher.pid, thrown.code());
  }
}

}  // namespace ddprun
