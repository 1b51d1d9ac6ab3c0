#include "launcher/ssh/remote.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/poll_until.h"
#include "base/random_id.h"
#include "base/read_all.h"
#include "base/signal_names.h"
#include "base/small_file.h"
#include "base/split.h"
#include "base/version.h"
#include "base/wait_status.h"
#include "base/worker_env.h"
#include "base/write_all.h"
#include "launcher/process/own_program.h"
#include "launcher/process/signal_source.h"
#include "launcher/ssh/core/host_list.h"
#include "launcher/ssh/protocol.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/local_address.h"

namespace ddprun {
namespace {

constexpr Duration kResolveTimeout = std::chrono::seconds(20);
constexpr std::size_t kMostReportBytes = 128 << 10;  // each may become 6 bytes of the line
constexpr Duration kAfterGrace = std::chrono::seconds(10);

// Tells the head an event. A head that is gone needs none.
void write_event(std::string_view mark, const HeadEvent& event) {
  write_all(STDOUT_FILENO, control_line(mark, event));
}

// Returns this host's address in the connection of sshd; empty: it is not known.
std::string address_of_session() {
  const std::string connection = environment_text("SSH_CONNECTION");
  const std::vector<std::string_view> words = split(connection, ' ');
  return words.size() == 4 ? std::string(words[2]) : "";
}

// Returns a text that no other host has; empty: it is not known. A container with a network or
// processes of its own is a host.
std::string name_of_machine() {
  std::string name = first_line_of("/proc/sys/kernel/random/boot_id");
  if (name.empty()) return "";
  for (const char* space : {"net", "pid", "uts"}) {
    std::error_code unknown;
    name += " " + std::filesystem::read_symlink(concat("/proc/self/ns/", space), unknown).string();
  }
  return name;
}

// Reads `size` bytes of the head. nullopt: the head is gone.
std::optional<std::string> read_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  const ssize_t count = read_all(STDIN_FILENO, bytes.data(), size);
  if (count != static_cast<ssize_t>(size)) return std::nullopt;
  return bytes;
}

// nullopt: the head is gone.
std::optional<Result<NodePlan>> read_plan() {
  const std::optional<std::string> head = read_bytes(kPlanSizeBytes);
  if (!head) return std::nullopt;
  const Result<std::size_t> size = decode_plan_size(*head);
  if (!size) return size.error();
  std::optional<std::string> bytes = read_bytes(*size);
  if (!bytes) return std::nullopt;
  Result<NodePlan> plan = decode_plan(*bytes);
  explicit_bzero(bytes->data(), bytes->size());  // it has the key
  return plan;
}

// Writes the file, and makes its folders. Leaves a file that has these contents already: on a
// shared file system another host, or the head itself, may be using it.
Result<void> write_copy(const CopiedFile& copy, const std::string& bytes) {
  const std::string doing = "--copy: write " + copy.path;
  {
    const UniqueFd old(open(copy.path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    struct stat status {};
    if (old.valid() && fstat(old.get(), &status) == 0 && S_ISREG(status.st_mode) &&
        status.st_uid == geteuid() && static_cast<std::uint64_t>(status.st_size) == bytes.size() &&
        (status.st_mode & 0777) == copy.mode) {
      std::string text(bytes.size(), '\0');
      read_all(old.get(), text.data(), text.size());
      if (text == bytes) return {};
    }
  }
  if (const auto folder = std::filesystem::path(copy.path).parent_path(); !folder.empty()) {
    std::error_code failed;
    std::filesystem::create_directories(folder, failed);
    if (failed) return system_error(doing, failed.value());
  }
  const std::string draft = concat(copy.path, ".", random_hex(4));
  const UniqueFd file(
      open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!file.valid()) return system_error(doing, errno);
  if (write_all(file.get(), bytes) && fchmod(file.get(), copy.mode) == 0 &&
      std::rename(draft.c_str(), copy.path.c_str()) == 0)
    return {};
  const int reason = errno;
  unlink(draft.c_str());
  return system_error(doing, reason);
}

// Enters the directory of the job and sets its environment.
Result<void> enter(const NodePlan& plan) {
  if (chdir(plan.directory.c_str()) != 0)
    return invalid_argument(concat("cannot enter ", plan.directory,
                                   ", where the job was started: ", errno_text(errno),
                                   " (start ddprun in a directory that all hosts have)"));
  setenv("PWD", plan.directory.c_str(), 1);
  // The head has read its own PET_ variables. Those of this host would contradict them.
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (text.starts_with("PET_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) unsetenv(name.c_str());
  for (const auto& [name, value] : plan.environment) setenv(name.c_str(), value.c_str(), 1);
  return {};
}

// Returns this host's address on the route to `peer`; empty: there is none that others reach.
std::string address_towards(const std::string& peer) {
  const Result<std::vector<SocketAddress>> addresses = resolve({peer, 9}, kResolveTimeout);
  if (!addresses) return "";
  for (const SocketAddress& address : *addresses) {
    const std::string own = source_address_towards(address);
    if (!own.empty() && !is_loopback_host(own) && !is_link_local(own)) return own;
  }
  return "";
}

// Returns the address at which the other hosts reach this one.
Result<std::string> own_address(const NodePlan& plan) {
  const std::vector<InterfaceAddress> own = interface_addresses();
  if (!plan.local_addr.empty()) {
    Result<std::string> found = find_local_address(plan.local_addr, own, kResolveTimeout);
    if (!found) return std::move(found).error().within("--local-addr");
    return found;
  }
  if (plan.peer.empty()) return address_of_session();
  const std::string found = address_towards(plan.peer);
  return found.empty() ? likely_local_address(own) : found;
}

struct Prepared {
  NodeJob job;
  std::string endpoint;  // empty: the job has one node
};

Result<Prepared> prepare_node(const NodePlan& plan) {
  Prepared prepared{.job = {.arguments = {}}, .endpoint = plan.endpoint};
  std::vector<std::string>& arguments = prepared.job.arguments;
  if (plan.nodes > 1) {
    prepared.job.key = plan.key;
    if (plan.endpoint.empty()) {
      Result<std::string> address = own_address(plan);
      if (!address) return address.error();
      Result<Listener> listener = listen_tcp("*", plan.ports);
      if (!listener) return listener.error();
      prepared.endpoint = to_text(HostPort{*address, listener->address.port});
      prepared.job.address = std::move(*address);
      prepared.job.listener = std::move(listener->socket);
    }
    arguments = {concat("--nnodes=", plan.nodes), concat("--node-rank=", plan.node_rank),
                 "--rdzv-endpoint=" + prepared.endpoint};
  }
  arguments.insert(arguments.end(), plan.arguments.begin(), plan.arguments.end());
  return prepared;
}

// Returns the report of the job, for the head. Empty: this is not node 0, or there is none, or it
// is too long for a line of the head.
std::string report_of(const NodePlan& plan, const NodeAgent& node) {
  if (plan.node_rank != 0 || node.report_file.empty()) return "";
  std::string report = text_of(node.report_file);
  return report.size() <= kMostReportBytes ? report : "";
}

struct AgentEnd {
  int exit_code = 0;
  bool has_head = false;  // the head is there to hear of it
};

// Passes signals on to the agent until it ends.
AgentEnd watch(pid_t agent, int signals, Duration grace) {
  std::optional<TimePoint> kill_at;  // set once the head is gone
  std::optional<TimePoint> silent_until = BootClock::now() + kHeadPatience;
  const auto end = [&] {
    kill(agent, SIGTERM);
    kill(agent, SIGCONT);  // it may have been stopped
    kill_at = BootClock::now() + grace + kAfterGrace;
  };
  int status = 0;
  while (waitpid(agent, &status, WNOHANG) == 0) {
    std::array<pollfd, 2> watched{{{signals, POLLIN, 0}, {kill_at ? -1 : STDIN_FILENO, POLLIN, 0}}};
    const TimePoint never = BootClock::now() + kLongestTimeout;
    if (!poll_until(watched, kill_at ? *kill_at : silent_until.value_or(never))) {
      if (!kill_at) {
        end();
        continue;
      }
      kill(agent, SIGKILL);  // its keeper ends what is left
      kill_at = never;
      continue;
    }
    while (const std::optional<TakenSignal> signal = next_signal(signals)) {
      if (signal->number != SIGCHLD) kill(agent, signal->number);
    }
    if (watched[1].revents == 0) continue;
    std::array<char, 64> numbers;
    const ssize_t count = read(STDIN_FILENO, numbers.data(), numbers.size());
    if (count < 0 && errno == EINTR) continue;
    for (ssize_t i = 0; i < count; ++i) kill(agent, numbers[static_cast<std::size_t>(i)]);
    if (count <= 0) {
      end();
    } else if (numbers[static_cast<std::size_t>(count) - 1] == SIGTSTP) {
      silent_until.reset();  // a head that is stopped says nothing
    } else {
      silent_until = BootClock::now() + kHeadPatience;
    }
  }
  return {exit_code_of_status(status), !kill_at};
}

}  // namespace

int run_far_end(const std::function<Result<NodeAgent>(NodeJob job)>& prepare) {
  std::signal(SIGPIPE, SIG_IGN);
  write_event(kGreetingMark,
              Greeted{0, kVersion, own_program(), address_of_session(), name_of_machine()});
  std::optional<Result<NodePlan>> read = read_plan();
  if (!read) return to_int(ExitCode::kNodeLost);
  if (!*read) return fail("ddprun ssh-node", read->error(), ExitCode::kCannotStart);
  NodePlan& plan = **read;
  const auto refuse = [&plan](const Error& error) {
    const ExitCode code = usage_or(ExitCode::kCannotStart, error);
    write_event(plan.mark, PlanRefused{0, error.message(), to_int(code)});
    return to_int(code);
  };
  // Before anything is started: these signals end an agent in order.
  std::vector<int> caught(kPassedSignals.begin(), kPassedSignals.end());
  caught.insert(caught.end(), {SIGUSR1, SIGUSR2});
  caught = without_ignored(caught);
  caught.push_back(SIGCHLD);
  const Result<UniqueFd> signals = open_signal_source(caught);
  if (!signals) return refuse(signals.error());
  if (const Result<void> entered = enter(plan); !entered) return refuse(entered.error());
  for (const CopiedFile& file : plan.files) {
    const std::optional<std::string> bytes = read_bytes(file.size);
    if (!bytes) return to_int(ExitCode::kNodeLost);
    if (const Result<void> written = write_copy(file, *bytes); !written)
      return refuse(written.error());
  }
  Result<Prepared> prepared = prepare_node(plan);
  explicit_bzero(plan.key.data(), plan.key.size());
  if (!prepared) return refuse(prepared.error());
  Result<NodeAgent> node = prepare(std::move(prepared->job));
  if (!node) return refuse(node.error());
  write_event(plan.mark, Ready{0, prepared->endpoint, node->grace});
  std::fflush(nullptr);
  const pid_t own = getpid();
  const pid_t agent = fork();
  if (agent < 0) return refuse(system_error("fork", errno));
  if (agent == 0) {
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != own) _exit(to_int(ExitCode::kInternal));
    const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null >= 0) dup2(null, STDIN_FILENO);
    const int code = node->run();
    std::fflush(nullptr);
    _exit(code);
  }
  node->run = nullptr;  // closes what only the agent needs
  const AgentEnd end = watch(agent, signals->get(), node->grace);
  // A head that is gone does not read its pipe. A write could block.
  if (end.has_head) write_event(plan.mark, AgentEnded{0, end.exit_code, report_of(plan, *node)});
  return end.exit_code;
}

}  // namespace ddprun
