// Random tests of Supervisor. A node of simulated processes runs under it. Events of the
// service, the user and the kernel come in random order. After each step the test checks what
// the header promises.
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/exit_codes.h"
#include "base/rng.h"
#include "base/signal_names.h"
#include "launcher/supervisor/core/supervisor.h"
#include "tests/support/sanitized.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Supervisor::State;

constexpr int kSlots = 3;
constexpr int kScripts = testing_support::rounds(20000);
constexpr int kSteps = 60;

class Node {
 public:
  Node(std::uint64_t seed, int checkpoint_signal, bool saves_on_term)
      : rng_(seed),
        checkpoint_signal_(checkpoint_signal),
        supervisor_({.host = "node0",
                     .slots = kSlots,
                     .grace = seconds(30),
                     .kill_timeout = seconds(20),
                     .checkpoint_signal = checkpoint_signal,
                     .saves_on_term = saves_on_term}) {}

  void live_a_step() {
    switch (rng_.below(16)) {
      case 0:
      case 1:
      case 2: return give(next_assignment());
      case 3: return give(a_stop());
      case 4: return some_worker_ends();
      case 5: return all_end_well();
      case 6: return descendants_end();
      case 7: return give(a_signal());
      case 8: return give(CheckpointAnnounced{Generation(generation_)});
      case 9: return give(WorkersHang{});
      case 10: return answer_look();
      case 11: return give(ForwardSignal{.generation = Generation(generation_), .signal = SIGUSR1});
      case 12: return pass(milliseconds(rng_.below(400)));
      case 13: return pass_to_deadline();
      case 14: return rng_.chance(0.3) ? seldom() : pass(seconds(1));
      default: return give(Wait{"others are late", Generation(generation_)});
    }
  }

  // Sends the verdict; after that only the node's own events come. The agent must end.
  void come_to_an_end() {
    answer_look();
    give(End{Verdict{.success = false, .exit_code = 9}});
    const bool hangs_in_the_kernel = rng_.chance(0.1);
    for (int i = 0; i < 10 && !exit_; ++i) {
      if (is_tree_empty()) {
        give(TreeEmpty{});
      } else if (!killed_ || hangs_in_the_kernel) {
        pass_to_deadline();
      } else {
        descendants_end();
      }
    }
    ASSERT_TRUE(exit_) << "it never ends";
    EXPECT_FALSE(supervisor_.deadline());
    give(next_assignment());
    give(UserSignal{SIGTERM, UserSignal::Way::kDirect});
  }

 private:
  void give(const SupervisorEvent& event) {
    expect_code_of(event);
    const SupervisorActions actions = supervisor_.step(event, now_);
    for (const SupervisorAction& action : actions) {
      std::visit([this](const auto& what) { perform(what); }, action);
    }
    look_at_promises();
  }

  void perform(const StartWorkers& start) {
    EXPECT_TRUE(is_tree_empty()) << "generation " << generation_ << " lives";
    EXPECT_GT(start.assignment.generation.value, generation_);
    generation_ = static_cast<int>(start.assignment.generation.value);
    told_to_end_ = killed_ = looking_ = suspended_ = false;
    pid_ += 100;
    for (int local = 0; local < kSlots; ++local) workers_[local] = pid_ + local;
    ended_after_stop_.clear();
    descendants_ = static_cast<int>(rng_.below(3));
  }
  void perform(const CheckNode&) { ADD_FAILURE() << "no check was asked for"; }
  void perform(const SignalTree&) {
    told_to_end_ = true;
    suspended_ = false;
  }
  void perform(const KillTree&) {
    told_to_end_ = killed_ = true;
    suspended_ = false;
  }
  void perform(const LookAtWorkers&) {
    EXPECT_FALSE(looking_) << "it is told twice";
    looking_ = true;
  }
  void perform(const ReleaseGeneration&) { EXPECT_TRUE(is_tree_empty()); }
  void perform(const SendLeave& leave) {
    EXPECT_FALSE(exit_);
    unkillable_ = leave.leave.reason.find("cannot be killed") != std::string::npos;
  }
  void perform(const Exit& exit) {
    EXPECT_FALSE(exit_) << "it ends twice";
    EXPECT_TRUE(is_tree_empty() || unkillable_);
    exit_ = exit;
    if (expected_code_ && !unkillable_) {
      EXPECT_EQ(exit.code, *expected_code_);
    }
  }
  void perform(const SuspendTree&) {
    EXPECT_FALSE(std::exchange(suspended_, true));
    EXPECT_EQ(supervisor_.state(), State::kRunning);
  }
  void perform(const ResumeTree&) { EXPECT_TRUE(std::exchange(suspended_, false)); }
  void perform(const SignalWorkers& what) {
    EXPECT_NE(what.signal, 0);
    EXPECT_EQ(supervisor_.state(), State::kRunning);
  }
  void perform(const SendStatus&) {}
  void perform(const LeaveAtOnce&) { EXPECT_TRUE(exit_); }
  void perform(const Say& say) { EXPECT_FALSE(say.text.empty()); }
  void perform(const ReportRestart&) {}

  void look_at_promises() {
    const AgentStatus status = supervisor_.status(now_);
    EXPECT_GE(status.generation.value, told_generation_) << "generations only grow";
    told_generation_ = status.generation.value;
    if (supervisor_.state() == State::kStopping) {
      EXPECT_TRUE(supervisor_.deadline());
    }
    if (status.phase == AgentPhase::kIdle || status.phase == AgentPhase::kFinished) {
      EXPECT_TRUE(is_tree_empty() || exit_);
    }
    for (const WorkerEnd& end : status.ends) {
      if (end.kind == EndKind::kNotStarted) continue;
      EXPECT_EQ(end.after_stop, ended_after_stop_.at(end.pid)) << describe(end);
    }
  }

  // The first event that ends the job decides the exit code: a signal of the user, a verdict, or
  // the loss of the service.
  void expect_code_of(const SupervisorEvent& event) {
    if (expected_code_ || checkpoint_signal_ != 0) return;
    if (const auto* signal = std::get_if<UserSignal>(&event)) {
      const auto is_passed = std::ranges::count(kPassedSignals, signal->signal) > 0;
      if (is_passed) expected_code_ = exit_code_of_signal(signal->signal);
    } else if (const auto* end = std::get_if<End>(&event)) {
      expected_code_ = end->verdict.exit_code;
    } else if (const auto* lost = std::get_if<ServiceLost>(&event)) {
      if (lost->for_good) expected_code_ = to_int(lost->code);
    } else if (std::holds_alternative<ServiceRefused>(event)) {
      expected_code_ = to_int(ExitCode::kRefused);
    } else if (std::holds_alternative<GuardianLost>(event)) {
      expected_code_ = to_int(ExitCode::kInternal);
    }
  }

  bool is_tree_empty() const { return workers_.empty() && descendants_ == 0; }

  Assignment next_assignment() {
    Assignment next;
    next.generation = Generation(generation_ + static_cast<int>(rng_.below(3)));
    next.store = {"h", 1};
    next.reason = "why not";
    if (rng_.chance(0.2)) next.failure = Verdict{.exit_code = 1, .headline = "before"};
    return next;
  }
  Stop a_stop() {
    return {.generation = Generation(generation_ + static_cast<int>(rng_.below(3)) - 1),
            .reason = "why not",
            .at_once = rng_.chance(0.3),
            .look = rng_.chance(0.3)};
  }
  UserSignal a_signal() {
    constexpr std::array kSignals{SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
    // Most signals are such that end nothing. Otherwise little would happen after the first one.
    const std::size_t which = rng_.chance(0.8) ? 3 + rng_.below(4) : rng_.below(3);
    return {kSignals[which], static_cast<UserSignal::Way>(rng_.below(3))};
  }
  void seldom() {
    switch (rng_.below(5)) {
      case 0: return give(ServiceLost{.reason = "away"});
      case 1:
        return give(
            ServiceLost{.reason = "gone", .for_good = true, .code = ExitCode::kServiceLost});
      case 2: return give(ServiceRefused{"no"});
      case 3: return give(GuardianLost{});
      default: return give(End{Verdict{.success = rng_.chance(0.5), .exit_code = 3}});
    }
  }

  WorkerEnd end_of(int local, EndKind kind, int code) {
    WorkerEnd end{.kind = kind, .code = code, .local_rank = LocalRank(local)};
    end.pid = workers_.at(local);
    workers_.erase(local);
    ended_after_stop_[end.pid] = supervisor_.state() == State::kStopping;
    return end;
  }
  void some_worker_ends() {
    if (workers_.empty()) return;
    WorkersEnded ended;
    const std::size_t count = 1 + rng_.below(workers_.size());
    while (ended.workers.size() < count) {
      const int local = workers_.begin()->first;
      const bool by_signal = rng_.chance(0.5);
      constexpr std::array kFates{SIGTERM, SIGKILL, SIGSEGV, SIGUSR1};
      const int code =
          by_signal ? kFates[rng_.below(kFates.size())] : static_cast<int>(rng_.below(3));
      ended.workers.push_back(
          end_of(local, by_signal ? EndKind::kSignaled : EndKind::kExited, code));
    }
    give(ended);
  }
  void all_end_well() {
    while (!workers_.empty()) {
      give(WorkersEnded{{end_of(workers_.begin()->first, EndKind::kExited, 0)}});
    }
  }
  // All processes end if SIGKILL was sent. TreeEmpty comes with the last one.
  void descendants_end() {
    if (killed_ || (told_to_end_ && rng_.chance(0.7))) {
      WorkersEnded ended;
      while (!workers_.empty()) {
        ended.workers.push_back(end_of(workers_.begin()->first, EndKind::kSignaled, SIGKILL));
      }
      if (!ended.workers.empty()) give(ended);
      descendants_ = 0;
    } else if (workers_.empty()) {
      descendants_ = 0;
    }
    if (is_tree_empty()) give(TreeEmpty{});
  }
  void answer_look() {
    if (!std::exchange(looking_, false)) return;
    WorkersSeen seen{.generation = Generation(generation_)};
    if (rng_.chance(0.8)) {
      for (const auto& [local, pid] : workers_) {
        WorkerSnapshot snapshot;
        snapshot.local_rank = LocalRank(local);
        snapshot.is_late = rng_.chance(0.5);
        seen.snapshots.push_back(snapshot);
      }
    }
    give(seen);
  }

  void pass(Duration time) {
    now_ += time;
    tick();
  }
  void pass_to_deadline() {
    if (!supervisor_.deadline()) return;
    now_ = std::max(now_, *supervisor_.deadline());
    tick();
    if (supervisor_.deadline()) {
      EXPECT_GT(*supervisor_.deadline(), now_) << "it would turn round";
    }
  }
  void tick() {
    if (supervisor_.deadline() && *supervisor_.deadline() <= now_) give(Tick{});
  }

  Rng rng_;
  const int checkpoint_signal_;
  Supervisor supervisor_;
  TimePoint now_ = TimePoint(seconds(1000));
  int generation_ = -1;  // the newest one that was started
  std::int64_t told_generation_ = -1;
  int pid_ = 1000;
  std::map<int, int> workers_;  // the living ones: local rank to pid
  int descendants_ = 0;         // living descendants of workers
  bool told_to_end_ = false;    // in this generation
  bool killed_ = false;
  bool looking_ = false;
  bool suspended_ = false;
  bool unkillable_ = false;
  std::map<pid_t, bool> ended_after_stop_;
  std::optional<int> expected_code_;
  std::optional<Exit> exit_;
};

void live_through(std::uint64_t seed, int checkpoint_signal, bool saves_on_term = false) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Node node(seed, checkpoint_signal, saves_on_term);
  for (int i = 0; i < kSteps; ++i) node.live_a_step();
  node.come_to_an_end();
}

TEST(SupervisorRandom, KeepsItsPromisesInAnyOrderOfEvents) {
  for (int seed = 0; seed < kScripts && !testing::Test::HasFailure(); ++seed) {
    live_through(static_cast<std::uint64_t>(seed), 0);
  }
}

TEST(SupervisorRandom, KeepsThemWithACheckpointSignalToo) {
  for (int seed = 0; seed < kScripts && !testing::Test::HasFailure(); ++seed) {
    live_through(static_cast<std::uint64_t>(seed), SIGUSR1);
  }
}

TEST(SupervisorRandom, KeepsThemWhereSigtermAsksForASave) {
  for (int seed = 0; seed < kScripts && !testing::Test::HasFailure(); ++seed) {
    live_through(static_cast<std::uint64_t>(seed), SIGUSR1, true);
  }
}

}  // namespace
}  // namespace ddprun
