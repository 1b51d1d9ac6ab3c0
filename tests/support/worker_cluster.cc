#include "tests/support/worker_cluster.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <csignal>

#include "base/worker_env.h"
#include "tests/support/running_store.h"

namespace ddprun::testing_support {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& string : strings) pointers.push_back(string.data());
  pointers.push_back(nullptr);
  return pointers;
}

// The test's own environment, with the variables on top.
std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> lines;
  for (char** line = environ; *line; ++line) {
    const std::string text = *line;
    if (!variables.contains(text.substr(0, text.find('=')))) lines.push_back(text);
  }
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  return lines;
}

WorkerEnv env_of(int rank, const WorkerClusterOptions& options, std::uint16_t port) {
  WorkerEnv env;
  env.rank = env.role_rank = Rank(rank);
  env.world_size = env.role_world_size = options.nodes * options.per_node;
  env.local_rank = LocalRank(rank % options.per_node);
  env.local_world_size = options.per_node;
  env.node_rank = NodeRank(rank / options.per_node);
  env.node_count = options.nodes;
  env.master_addr = "127.0.0.1";
  env.master_port = port;
  env.run_id = "test";
  env.omp_num_threads = "1";
  env.generation = Generation(options.generation);
  return env;
}

}  // namespace

WorkerCluster::WorkerCluster(const WorkerClusterOptions& options)
    : store_(std::make_unique<RunningStore>()),
      workers_(static_cast<std::size_t>(options.nodes * options.per_node)) {
  for (int rank = 0; rank < size(); ++rank) {
    std::map<std::string, std::string> variables = options.environment;
    for (const auto& [name, value] : variables_of(env_of(rank, options, store_->port()))) {
      variables[name] = value;
    }
    start(workers_[static_cast<std::size_t>(rank)], options, std::move(variables));
  }
}

WorkerCluster::~WorkerCluster() {
  for (int rank = 0; rank < size(); ++rank) signal(rank, SIGKILL);
  for (Worker& worker : workers_) {
    if (worker.pid > 0) waitpid(worker.pid, nullptr, 0);
  }
}

void WorkerCluster::start(Worker& worker, const WorkerClusterOptions& options,
                          std::map<std::string, std::string> variables) {
  worker.output = UniqueFd(memfd_create("worker output", MFD_CLOEXEC));
  // The child of a program with threads may only make system calls: all else is done before the
  // fork.
  std::vector<std::string> words = options.command;
  std::vector<std::string> lines = environment_with(variables);
  const std::vector<char*> argv = pointers_to(words);
  const std::vector<char*> envp = pointers_to(lines);
  const pid_t parent = getpid();
  worker.pid = fork();
  if (worker.pid != 0) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);
  dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
  dup2(worker.output.get(), STDOUT_FILENO);
  dup2(worker.output.get(), STDERR_FILENO);
  execve(argv[0], argv.data(), envp.data());
  _exit(127);
}

std::string WorkerCluster::output(int rank) const {
  const int file = workers_[static_cast<std::size_t>(rank)].output.get();
  struct stat status {};
  fstat(file, &status);
  std::string text(static_cast<std::size_t>(status.st_size), '\0');
  const ssize_t got = pread(file, text.data(), text.size(), 0);
  text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return text;
}

void WorkerCluster::signal(int rank, int number) {
  const Worker& worker = workers_[static_cast<std::size_t>(rank)];
  if (worker.pid > 0) kill(worker.pid, number);
}

bool WorkerCluster::wait_for_all(Duration timeout) {
  const TimePoint end = BootClock::now() + timeout;
  while (true) {
    bool are_over = true;
    for (Worker& worker : workers_) are_over &= reap(worker);
    if (are_over) return true;
    if (BootClock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

// Whether it is over.
bool WorkerCluster::reap(Worker& worker) {
  if (worker.pid < 0) return true;
  int status = 0;
  if (waitpid(worker.pid, &status, WNOHANG) != worker.pid) return false;
  worker.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  worker.pid = -1;
  return true;
}

}  // namespace ddprun::testing_support
