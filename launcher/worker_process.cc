#include "launcher/worker_process.h"

#include <fcntl.h>
#include <linux/close_range.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <boost/process/v2/environment.hpp>
#include <boost/process/v2/posix/default_launcher.hpp>
#include <csignal>
#include <map>

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

  template <class Launcher>
  error_code on_setup(Launcher& launcher, const process::filesystem::path&, const char* const*&) {
    launcher.env = environment;
    return {};
  }

  template <class Launcher>
  error_code on_exec_setup(Launcher&, const process::filesystem::path&, const char* const*&) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    // The agent may have died before the line above: then nobody would kill this process.
    if (getppid() != agent) _exit(1);
    setsid();
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(err, STDERR_FILENO) < 0) {
      return error_code(errno, boost::system::system_category());
    }
    // Whatever is open beyond the streams ends with exec (Linux 5.11; before that what is ours
    // does).
    syscall(SYS_close_range, STDERR_FILENO + 1, ~0U, CLOSE_RANGE_CLOEXEC);
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

}  // namespace

Result<WorkerHandle> start_worker(boost::asio::io_context& io, const WorkerStart& start) {
  const UniqueFd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!null.valid()) return system_error("open /dev/null", errno);
  const Environment environment(start.variables);
  WorkerInitializer initializer{null.get(), start.out, start.err, getpid(), environment.get()};

  process::posix::default_launcher launcher;
  error_code error;
  WorkerHandle handle =
      launcher(io.get_executor(), error, start.executable, start.arguments, initializer);
  if (error) return system_error("start " + start.executable, error.value());
  return handle;
}

}  // namespace ddprun
