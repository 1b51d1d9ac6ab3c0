#include "worker_lib/spawn/monitor.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/exit_codes.h"
#include "base/parse_number.h"
#include "base/pidfd.h"
#include "base/poll_until.h"
#include "base/process_tree.h"
#include "base/small_file.h"
#include "base/write_all.h"
#include "worker_lib/spawn/core/watch.h"
#include "worker_lib/store/hosted_store.h"

namespace ddprun {
namespace {

// Closes descriptors inherited from the program. Otherwise the monitor would keep the program's
// files and pipes open, and their readers would not see the end of file.
void close_all_but(const std::vector<int>& kept) {
  for (const std::filesystem::path& open : entries_of("/proc/self/fd")) {
    const auto fd = parse_number<int>(open.filename().native());
    if (fd && *fd > STDERR_FILENO && std::ranges::count(kept, *fd) == 0) close(*fd);
  }
}

void put_nothing_at(int descriptor, int flags) {
  const UniqueFd nothing(open("/dev/null", flags | O_CLOEXEC));
  if (nothing.valid()) dup2(nothing.get(), descriptor);
}

class Monitor {
 public:
  explicit Monitor(MonitorStart start)
      : start_(std::move(start)),
        ranks_(start_.board.ranks()),
        watch_(static_cast<int>(ranks_.size()), start_.grace) {}

  void live() {
    // The program's handling of SIGCHLD must not affect how the monitor gets the ends of its
    // children.
    sigaction(SIGCHLD, nullptr, &childrens_ends_);
    std::signal(SIGCHLD, SIG_DFL);
    const Result<void> started = start_ranks();
    if (!started) {
      start_.board->trouble.set(started.error().message());
      start_.board->trouble_errno = started.error().sys_errno;
      end_all_descendants(kKillPatience);
      return;
    }
    write_all(start_.answers.write.get(), ".");
    while (!watch_.is_over()) wait_for_something();
    start_.board->story = watch_.story().value_or(-1);
    end_all_descendants(kKillPatience);
    start_.board->over = true;
  }

 private:
  Result<void> start_ranks() {
    prctl(PR_SET_NAME, "ddp-spawn");
    become_subreaper();
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      Result<void> started = start_rank(rank);
      if (!started) return started;
    }
    let_go_of_the_programs();
    Result<std::unique_ptr<HostedStore>> hosted = HostedStore::start(std::move(start_.listener));
    if (!hosted) return hosted.error();
    store_ = std::move(*hosted);
    return {};
  }

  Result<void> start_rank(int rank) {
    const std::string doing = concat("fork rank ", rank);
    const pid_t monitor = getpid();
    const pid_t pid = fork();
    if (pid < 0) return system_error(doing, errno);
    if (pid == 0) be_rank(rank, monitor);
    ranks_[rank].pid = pid;
    pidfds_.push_back(pidfd_of(pid));
    return pidfds_.back().valid() ? Result<void>() : system_error(doing, errno);
  }

  [[noreturn]] void be_rank(int rank, pid_t monitor) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != monitor) _exit(to_int(ExitCode::kInternal));
    const std::function<int(int)> run = std::move(start_.run_rank);
    const sigset_t signals = start_.signals;
    start_.orders = {};
    start_.answers = {};
    start_.listener.socket.reset();
    start_.program.reset();
    pidfds_.clear();
    put_nothing_at(STDIN_FILENO, O_RDONLY);
    sigaction(SIGCHLD, &childrens_ends_, nullptr);
    sigprocmask(SIG_SETMASK, &signals, nullptr);
    _exit(run(rank));
  }

  void let_go_of_the_programs() {
    std::vector<int> kept{start_.listener.socket.get(), start_.orders.read.get(),
                          start_.answers.write.get(), start_.program.get()};
    for (const UniqueFd& pidfd : pidfds_) kept.push_back(pidfd.get());
    start_.orders.write.release();
    start_.answers.read.release();
    close_all_but(kept);
    put_nothing_at(STDIN_FILENO, O_RDONLY);
    put_nothing_at(STDOUT_FILENO, O_WRONLY);
  }

  void wait_for_something() {
    std::vector<pollfd> watched{{start_.program.get(), POLLIN, 0},
                                {start_.orders.read.get(), POLLIN, 0}};
    for (const UniqueFd& pidfd : pidfds_) watched.push_back({pidfd.get(), POLLIN, 0});
    poll_until(watched, watch_.next_time().value_or(BootClock::now() + kLongestTimeout));
    if (watched[0].revents != 0) {
      start_.program.reset();
      // With grace, because the ranks may have been asked to save when the program was.
      stop(SpawnWatch::Haste::kGrace);
    }
    if (watched[1].revents != 0) take_order();
    reap();
    act(watch_.on_time(BootClock::now()));
  }

  void take_order() {
    char order = 0;
    if (read(start_.orders.read.get(), &order, 1) != 1) {
      start_.orders.read.reset();  // the program has closed it; its pidfd tells when it ends
      return;
    }
    const bool at_once = order == static_cast<char>(MonitorOrder::kKill);
    stop(at_once ? SpawnWatch::Haste::kNow : SpawnWatch::Haste::kGrace);
  }

  void stop(SpawnWatch::Haste haste) {
    start_.board->stopped = true;
    act(watch_.on_stop(haste, BootClock::now()));
  }

  // Reaps ranks and the orphans of their processes.
  void reap() {
    int status = 0;
    for (pid_t pid = 0; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
      const auto rank = std::ranges::find(ranks_, pid, &SpawnBoard::Rank::pid);
      if (rank == ranks_.end() || rank->ended) continue;
      rank->wait_status = status;
      rank->ended = true;
      const auto number = rank - ranks_.begin();
      pidfds_[number].reset();
      act(watch_.on_end(static_cast<int>(number), end_of(*rank), BootClock::now()));
    }
  }

  static RankEnd end_of(const SpawnBoard::Rank& rank) {
    RankEnd end;
    if (WIFSIGNALED(rank.wait_status)) {
      end.signal = WTERMSIG(rank.wait_status);
    } else {
      end.well = WEXITSTATUS(rank.wait_status) == 0;
    }
    if (rank.kind == DistError::Kind::kPeerLost) end.blamed_peer = rank.peer_rank;
    return end;
  }

  void act(SpawnWatch::Act act) {
    if (act == SpawnWatch::Act::kNothing) return;
    signal_descendants(act == SpawnWatch::Act::kKill ? SIGKILL : SIGTERM, signalled_);
  }

  MonitorStart start_;
  const std::span<SpawnBoard::Rank> ranks_;
  SpawnWatch watch_;
  std::vector<UniqueFd> pidfds_;  // by rank; invalid: the rank has ended
  std::unique_ptr<HostedStore> store_;
  std::set<pid_t> signalled_;
  struct sigaction childrens_ends_ {};
};

}  // namespace

void be_monitor(MonitorStart start) noexcept {
  Monitor(std::move(start)).live();
  _exit(0);
}

}  // namespace ddprun
