#include "ddprun/spawn.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <thread>
#include <utility>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/parse_number.h"
#include "base/pidfd.h"
#include "base/poll_until.h"
#include "base/process_tree.h"
#include "base/signal_names.h"
#include "base/small_file.h"
#include "base/usable_cpus.h"
#include "base/write_all.h"
#include "worker_lib/spawn/board.h"
#include "worker_lib/spawn/core/plan.h"
#include "worker_lib/spawn/core/watch.h"
#include "worker_lib/spawn/monitor.h"
#include "worker_lib/util/exception_text.h"
#include "worker_lib/util/public_error.h"

namespace ddprun {
namespace {

constexpr Duration kStartPatience = std::chrono::minutes(1);
// A joined thread may still be listed for a moment.
constexpr Duration kThreadEndPatience = std::chrono::milliseconds(200);
constexpr Duration kLook = std::chrono::milliseconds(1);
// Timeout for the end of a monitor that has closed its pipe.
constexpr Duration kMonitorEndPatience = std::chrono::seconds(5);

// Returns the value, or throws why spawn() failed.
template <class T>
T value_for_spawn(Result<T> result, std::string_view doing = "spawn") {
  if (!result) throw to_dist_error(std::move(result).error().within(doing));
  return value_or_throw(std::move(result));
}

// --- whether this process can be forked

ForkObstacles obstacles_now() {
  ForkObstacles obstacles;
  for (const std::filesystem::path& task : entries_of("/proc/self/task")) {
    if (parse_number<pid_t>(task.filename().native()) == gettid()) continue;
    const std::string name = first_line_of(task / "comm");
    if (!name.empty()) obstacles.other_threads.push_back(name);
  }
  for (const std::filesystem::path& open : entries_of("/proc/self/fd")) {
    std::error_code gone;
    // /dev/nvidiactl does not count: NVML opens it, too, and survives a fork.
    if (std::filesystem::read_symlink(open, gone) == "/dev/nvidia-uvm") obstacles.has_cuda = true;
  }
  return obstacles;
}

Result<void> check_can_fork_now() {
  const Deadline deadline(kThreadEndPatience);
  for (;;) {
    Result<void> can = check_can_fork(obstacles_now());
    if (can || deadline.passed()) return can;
    std::this_thread::sleep_for(kLook);
  }
}

// --- a rank

// Output that cannot be written is lost, because there is no way to report it.
void flush_streams() noexcept {
  try {
    std::cout.flush();
    std::cerr.flush();
    std::clog.flush();
  } catch (...) {
  }
  std::fflush(nullptr);
}

void enter(Rank rank, const SpawnPlace& place) {
  const RankVariables variables = variables_of_rank(rank, place, environment_variable);
  for (const std::string& name : variables.unset) unsetenv(name.c_str());
  // OpenMP has already read its variable.
  if (!environment_variable("OMP_NUM_THREADS")) at::set_num_threads(threads_of_rank(place));
  for (const auto& [name, value] : variables.set) setenv(name.c_str(), value.c_str(), 1);
}

int run_rank(Rank rank, const SpawnPlace& place, const std::function<void(int)>& fn,
             SpawnBoard::Rank& board) noexcept {
  int exit_code = 0;
  try {
    enter(rank, place);
    fn(rank.value);
  } catch (...) {
    const ExceptionText words = exception_text();
    board.line.set(one_line_of(words));
    board.message.set(words.text);
    board.kind = words.kind.value_or(DistError::Kind::kSystem);
    board.peer_rank = words.peer_rank;
    board.threw = true;
    exit_code = 1;
  }
  flush_streams();
  return exit_code;
}

// --- how the ranks ended

SpawnError describe(int rank, std::span<const SpawnBoard::Rank> ranks) {
  const SpawnBoard::Rank& one = ranks[rank];
  std::string what = concat("spawn: rank ", rank, " of ", ranks.size());
  SpawnError::Facts facts{.kind = DistError::Kind::kPeerLost,
                          .peer_rank = rank,
                          .rank = rank,
                          .pid = static_cast<int>(one.pid)};
  if (WIFSIGNALED(one.wait_status)) {
    facts.signal = WTERMSIG(one.wait_status);
    what += " was killed by " + signal_name(*facts.signal);
  } else if (one.threw) {
    facts.kind = one.kind;
    facts.peer_rank = one.peer_rank;
    facts.message = one.message.text();
    what += " threw " + one.line.text();
  } else {
    facts.exit_code = WEXITSTATUS(one.wait_status);
    what += concat(" ended with exit code ", *facts.exit_code);
  }
  return SpawnError(what, std::move(facts));
}

// Waits for the end of a monitor that has ended or is about to. Returns its status; nullopt:
// other code has already waited for it.
std::optional<int> end_of_monitor(pid_t monitor, const UniqueFd& pidfd) {
  pollfd ended{pidfd.get(), POLLIN, 0};
  poll_until({&ended, 1}, BootClock::now() + kMonitorEndPatience);
  int status = 0;
  return waitpid(monitor, &status, WNOHANG) == monitor ? std::optional(status) : std::nullopt;
}

// Returns a text about ranks that SIGKILL could not end; empty if there are none.
std::string left_over(std::span<const SpawnBoard::Rank> ranks) {
  std::string text;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (!ranks[rank].ended)
      text += concat("; rank ", rank, " (pid ", ranks[rank].pid, ") cannot be killed");
  }
  return text;
}

}  // namespace

struct SpawnContext::Impl {
  SharedSpawnBoard board;
  Duration grace;
  Pipe orders;  // both ends, so that an order to an ended monitor causes no SIGPIPE
  UniqueFd answers;
  pid_t monitor = 0;
  UniqueFd monitor_end;  // its pidfd
  const pid_t owner = getpid();
  bool is_over = false;
  std::exception_ptr failure = nullptr;  // set once it is over
  bool is_reported = false;

  void start(const std::function<void(int)>& fn, const SpawnPlace& place, Listener listener);
  void order(MonitorOrder order) const {
    const char byte = static_cast<char>(order);
    write_all(orders.write.get(), {&byte, 1});
  }
  bool wait(Duration patience);
  std::exception_ptr what_became() const;
};

void SpawnContext::Impl::start(const std::function<void(int)>& fn, const SpawnPlace& place,
                               Listener listener) {
  Pipe answering = value_for_spawn(make_pipe());
  UniqueFd program = pidfd_of(getpid());
  if (!program.valid()) throw to_dist_error(system_error("spawn: watch this process", errno));
  flush_streams();  // otherwise each rank would write the buffered output again
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  monitor = fork();
  const int fork_errno = errno;
  if (monitor == 0) {
    const auto run = [&](int rank) { return run_rank(Rank(rank), place, fn, board.ranks()[rank]); };
    be_monitor({.board = board,
                .listener = std::move(listener),
                .orders = std::move(orders),
                .answers = std::move(answering),
                .program = std::move(program),
                .grace = grace,
                .signals = before,
                .run_rank = run});
  }
  sigprocmask(SIG_SETMASK, &before, nullptr);
  if (monitor < 0) throw to_dist_error(system_error("spawn: fork", fork_errno));
  monitor_end = pidfd_of(monitor);
  answers = std::move(answering.read);
  answering.write.reset();

  pollfd answer{answers.get(), POLLIN, 0};
  char byte = 0;
  const bool in_time = poll_until({&answer, 1}, BootClock::now() + kStartPatience);
  if (in_time && read(answers.get(), &byte, 1) == 1) return;
  if (!in_time) ::kill(monitor, SIGKILL);  // the kernel then kills the ranks
  end_of_monitor(monitor, monitor_end);
  is_over = true;
  const std::string trouble = board->trouble.text();
  Error error = trouble.empty() ? Error{.cause = "the monitor of the ranks " +
                                                 std::string(in_time ? "was killed" : "hangs")}
                                : system_error("", board->trouble_errno);
  if (!trouble.empty()) error.cause = trouble;
  throw to_dist_error(std::move(error).within("spawn"));
}

// Returns true if it is over.
bool SpawnContext::Impl::wait(Duration patience) {
  if (is_over) return true;
  pollfd ended{answers.get(), POLLIN, 0};
  if (!poll_until({&ended, 1}, Deadline(patience).when())) return false;
  failure = what_became();
  is_over = true;
  return true;
}

std::exception_ptr SpawnContext::Impl::what_became() const {
  const std::optional<int> status = end_of_monitor(monitor, monitor_end);
  const std::span<const SpawnBoard::Rank> ranks = board.ranks();
  if (!board->over) {
    const bool by_signal = status && WIFSIGNALED(*status);
    return std::make_exception_ptr(
        DistError(DistError::Kind::kSystem,
                  concat("spawn: the monitor of the ranks (pid ", monitor, ") was killed",
                         by_signal ? " by " + signal_name(WTERMSIG(*status)) : "",
                         ", and the ranks with it")));
  }
  if (board->story >= 0) return std::make_exception_ptr(describe(board->story, ranks));
  if (board->stopped) {
    return std::make_exception_ptr(DistError(
        DistError::Kind::kStopped, "spawn: the ranks were asked to end" + left_over(ranks)));
  }
  return nullptr;
}

SpawnContext::SpawnContext(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SpawnContext::SpawnContext(SpawnContext&&) noexcept = default;

SpawnContext& SpawnContext::operator=(SpawnContext&& other) noexcept {
  SpawnContext before(std::exchange(impl_, std::move(other.impl_)));
  return *this;
}

SpawnContext::~SpawnContext() {
  // In a rank or another forked process this is a copy of the program's object.
  if (!impl_ || impl_->owner != getpid()) return;
  if (!impl_->wait(Duration::zero())) {
    if (!std::ranges::all_of(impl_->board.ranks(), &SpawnBoard::Rank::ended)) {
      TORCH_WARN("ddprun: spawn: the SpawnContext ended before its ranks, which are ended now");
      impl_->order(MonitorOrder::kTerminate);
    }
    impl_->wait(impl_->grace + kRankKillPatience + kKillPatience);
  }
  if (!impl_->failure || impl_->is_reported) return;
  try {
    std::rethrow_exception(impl_->failure);
  } catch (const DistError& failure) {
    if (failure.kind() == DistError::Kind::kStopped) return;
    TORCH_WARN("ddprun: the error was not retrieved: ", failure.what());
  }
}

bool SpawnContext::join(std::optional<std::chrono::nanoseconds> timeout) {
  if (!impl_->wait(timeout.value_or(kLongestTimeout))) return false;
  impl_->is_reported = true;
  if (impl_->failure) std::rethrow_exception(impl_->failure);
  return true;
}

std::vector<int> SpawnContext::pids() const {
  std::vector<int> pids;
  for (const SpawnBoard::Rank& rank : impl_->board.ranks()) pids.push_back(rank.pid);
  return pids;
}

void SpawnContext::kill() {
  impl_->is_reported = true;  // the caller that kills them knows their end
  if (impl_->wait(Duration::zero())) return;
  impl_->order(MonitorOrder::kKill);
  impl_->wait(kRankKillPatience + kKillPatience);
}

void spawn(const std::function<void(int rank)>& fn, int nprocs, const SpawnOptions& options) {
  spawn_context(fn, nprocs, options).join();
}

SpawnContext spawn_context(const std::function<void(int rank)>& fn, int nprocs,
                           const SpawnOptions& options) {
  const auto refuse = [](const std::string& why) {
    throw DistError(DistError::Kind::kInvalidArgument, "spawn: " + why);
  };
  if (!fn) refuse("fn is empty: give it what a rank does");
  if (nprocs < 1) refuse(concat("nprocs ", nprocs, " is less than 1"));
  if (options.grace < Duration::zero())
    refuse("grace must not be negative, but is " + to_text(options.grace));
  value_for_spawn(check_can_fork_now());
  const std::string range = environment_text("DDPRUN_PORT_RANGE");
  const PortRange ports =
      range.empty() ? PortRange{}
                    : value_for_spawn(parse_port_range(range), "spawn: DDPRUN_PORT_RANGE");
  Listener listener =
      value_for_spawn(listen_tcp("127.0.0.1", ports), "spawn: host the ranks' store");
  const SpawnPlace place{
      .ranks = nprocs, .store = listener.address, .cpus = static_cast<int>(usable_cpus().size())};
  auto impl = std::make_unique<SpawnContext::Impl>(
      SpawnContext::Impl{.board = value_for_spawn(SharedSpawnBoard::make(nprocs)),
                         // Limited, so that points in time can be computed.
                         .grace = std::min<Duration>(options.grace, kLongestTimeout),
                         .orders = value_for_spawn(make_pipe()),
                         .answers = {},
                         .monitor_end = {}});
  impl->start(fn, place, std::move(listener));
  return SpawnContext(std::move(impl));
}

}  // namespace ddprun
