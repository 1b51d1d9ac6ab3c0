#include "launcher/supervisor/core/supervisor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "base/exit_codes.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;
using State = Supervisor::State;

class SupervisorTest : public testing::Test {
 protected:
  SupervisorTest()
      : supervisor_(
            {.host = "node0", .slots = 2, .grace = seconds(30), .kill_timeout = seconds(20)}) {}

  void step(const SupervisorEvent& event) {
    actions_ = supervisor_.step(event, now_);
    for (const SupervisorAction& action : actions_) {
      if (const auto* exit = std::get_if<Exit>(&action)) exit_ = *exit;
      if (const auto* leave = std::get_if<SendLeave>(&action)) leave_ = leave->leave;
    }
  }

  static Assignment assignment(int generation) {
    return Assignment{.generation = Generation(generation),
                      .node_rank = NodeRank(1),
                      .node_count = 2,
                      .first_rank = Rank(2),
                      .world_size = 4,
                      .store = {"h", 1},
                      .restart_count = 0,
                      .reason = "start"};
  }
  void run(int generation = 0) {
    step(assignment(generation));
    ASSERT_TRUE(has<StartWorkers>());
  }

  static WorkerEnd one(int local_rank, EndKind kind, int code) {
    WorkerEnd end{.kind = kind, .code = code};
    end.local_rank = LocalRank(local_rank);
    end.pid = 100 + local_rank;
    return end;
  }
  void exited(int local_rank, int code) {
    step(WorkersEnded{{one(local_rank, EndKind::kExited, code)}});
  }
  void killed(int local_rank, int signal) {
    step(WorkersEnded{{one(local_rank, EndKind::kSignaled, signal)}});
  }

  template <class T>
  bool has() const {
    return find<T>() != nullptr;
  }
  template <class T>
  const T* find() const {
    for (const SupervisorAction& action : actions_) {
      if (const T* found = std::get_if<T>(&action)) return found;
    }
    return nullptr;
  }
  bool signals(int signal) const {
    return find<SignalTree>() && find<SignalTree>()->signal == signal;
  }
  std::string said() const {
    std::string text;
    for (const SupervisorAction& action : actions_) {
      if (const Say* say = std::get_if<Say>(&action)) text += say->text + "\n";
    }
    return text;
  }
  void pass(Duration time) {
    now_ += time;
    actions_.clear();
    if (supervisor_.deadline() && *supervisor_.deadline() <= now_) step(Tick{});
  }
  AgentStatus status() const { return supervisor_.status(now_); }

  TimePoint now_ = TimePoint(seconds(1000));
  Supervisor supervisor_;
  SupervisorActions actions_;
  std::optional<Exit> exit_;
  std::optional<Leave> leave_;
};

TEST_F(SupervisorTest, StartsAnAssignmentOnceHoweverOftenItIsTold) {
  run();
  EXPECT_EQ(status().phase, AgentPhase::kRunning);
  step(assignment(0));
  EXPECT_FALSE(has<StartWorkers>());
}

TEST_F(SupervisorTest, ACrashAfterTheEndStopsNobodyAndIsToldWhenAllAreDone) {
  run();
  WorkerEnd crash = one(0, EndKind::kSignaled, SIGABRT);
  crash.finished = true;
  step(WorkersEnded{{crash}});
  EXPECT_FALSE(has<SignalTree>()) << "the other one goes on";
  EXPECT_THAT(said(),
              HasSubstr("was killed by SIGABRT after its Context had been destroyed in good "
                        "order: the other ranks go on"));
  EXPECT_TRUE(status().ends.empty());
  exited(1, 0);
  step(TreeEmpty{});
  EXPECT_EQ(status().phase, AgentPhase::kFinished);
  ASSERT_EQ(status().ends.size(), 1u);
  EXPECT_TRUE(status().ends[0].finished);
  EXPECT_EQ(status().left, std::vector{LocalRank(1)});
}

TEST_F(SupervisorTest, ARankThatCrashedAfterItsEndHasLeftWhereOthersAreStopped) {
  run();
  WorkerEnd crash = one(0, EndKind::kSignaled, SIGABRT);
  crash.finished = true;
  step(WorkersEnded{{crash}});
  step(Stop{.generation = Generation(0), .reason = "rank 5 failed"});
  EXPECT_EQ(status().left, std::vector{LocalRank(0)});
  EXPECT_TRUE(status().ends.empty());
}

TEST_F(SupervisorTest, ARankThatReturnedAndIsStoppedInItsTeardownHasLeftEarly) {
  run();
  WorkerEnd victim = one(0, EndKind::kSignaled, SIGABRT);
  victim.blames = 3;
  step(WorkersEnded{{victim}});
  WorkerEnd leaver = one(1, EndKind::kSignaled, SIGTERM);
  leaver.finished = true;
  step(WorkersEnded{{leaver}});
  ASSERT_EQ(status().ends.size(), 2u);
  EXPECT_THAT(describe(status().ends[0]),
              HasSubstr("exited with code 0 while other ranks still needed it"));
  EXPECT_EQ(status().ends[1].blames, status().ends[0].rank.value);
}

TEST_F(SupervisorTest, WhoEndedWithZeroIsToldWhenTheGenerationIsStopped) {
  run();
  exited(1, 0);
  EXPECT_TRUE(status().left.empty()) << "it runs";
  step(Stop{.generation = Generation(0), .reason = "rank 0 failed"});
  EXPECT_EQ(status().left, std::vector{LocalRank(1)});
  killed(0, SIGTERM);
  step(TreeEmpty{});
  EXPECT_EQ(status().phase, AgentPhase::kIdle);
  EXPECT_EQ(status().left, std::vector{LocalRank(1)});
  step(assignment(1));
  EXPECT_TRUE(status().left.empty());
}

TEST_F(SupervisorTest, WhatFailedBeforeIsReportedOnceAndNotKept) {
  Assignment second = assignment(1);
  second.failure = Verdict{.exit_code = 3, .headline = "h"};
  step(second);
  ASSERT_TRUE(has<ReportRestart>());
  EXPECT_EQ(find<ReportRestart>()->failed.headline, "h");
  EXPECT_FALSE(supervisor_.assignment()->failure);
  step(second);
  EXPECT_FALSE(has<ReportRestart>()) << "it was told again";
}

TEST_F(SupervisorTest, FinishesWhenAllWorkersEndWellAndNothingIsLeft) {
  run();
  exited(0, 0);
  exited(1, 0);
  EXPECT_TRUE(signals(SIGTERM)) << "what they left behind is told to end";
  EXPECT_EQ(status().phase, AgentPhase::kRunning);
  step(TreeEmpty{});
  EXPECT_EQ(status().phase, AgentPhase::kFinished);
  step(End{Verdict{.success = true, .headline = "well"}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 0);
}

TEST_F(SupervisorTest, AFailureStopsTheOthersAndIsReportedWithItsRank) {
  run();
  killed(1, SIGKILL);
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_EQ(said(),
            "rank 3 (local rank 1 on node0, pid 101) was killed by SIGKILL; stopping the other 1 "
            "worker\n");
  ASSERT_EQ(status().ends.size(), 1u);
  EXPECT_EQ(status().ends[0].rank, Rank(3));
  EXPECT_FALSE(status().ends[0].after_stop);
  killed(0, SIGTERM);
  ASSERT_EQ(status().ends.size(), 2u);
  EXPECT_TRUE(status().ends[1].after_stop) << "it is a victim";
  step(TreeEmpty{});
  EXPECT_TRUE(has<ReleaseGeneration>());
  EXPECT_EQ(status().phase, AgentPhase::kIdle);
  EXPECT_EQ(status().generation, Generation(0));
}

TEST_F(SupervisorTest, ARankThatLeftEarlyWithCode0ComesFirstWhereAnotherMissesIt) {
  run();
  step(WorkersEnded{{one(1, EndKind::kExited, 0)}});
  EXPECT_TRUE(status().ends.empty());
  WorkerEnd aborted = one(0, EndKind::kSignaled, SIGABRT);
  aborted.blames = 3;
  step(WorkersEnded{{aborted}});
  ASSERT_EQ(status().ends.size(), 2u);
  EXPECT_EQ(status().ends[0].rank, Rank(3));
  EXPECT_EQ(status().ends[1].rank, Rank(2));
  EXPECT_THAT(said(), HasSubstr("exited with code 0 while other ranks still needed it"));
}

TEST_F(SupervisorTest, EndsSeenAtOneInstantAreJudgedTogether) {
  run();
  step(WorkersEnded{{one(0, EndKind::kExited, 1), one(1, EndKind::kSignaled, SIGKILL)}});
  EXPECT_THAT(said(), HasSubstr("rank 3")) << "the killed one is the cause: " << said();
  for (const WorkerEnd& end : status().ends) EXPECT_FALSE(end.after_stop);
}

TEST_F(SupervisorTest, AStubbornWorkerIsKilledWhenTheGraceIsOver) {
  run();
  exited(0, 3);
  pass(seconds(29));
  EXPECT_FALSE(has<KillTree>());
  pass(seconds(1));
  EXPECT_TRUE(has<KillTree>());
  killed(1, SIGKILL);
  step(TreeEmpty{});
  EXPECT_EQ(supervisor_.state(), State::kIdle);
}

TEST_F(SupervisorTest, WhatCannotBeKilledMakesTheNodeLeave) {
  run();
  exited(0, 3);
  pass(seconds(30));
  pass(seconds(20));
  ASSERT_TRUE(exit_ && leave_);
  EXPECT_EQ(exit_->code, 70);
  EXPECT_THAT(leave_->reason, HasSubstr("cannot be killed"));
}

TEST_F(SupervisorTest, AStopFromTheServiceEndsTheGenerationAndIsConfirmed) {
  run();
  step(Stop{Generation(0), "rank 0 failed elsewhere"});
  EXPECT_TRUE(signals(SIGTERM));
  killed(0, SIGTERM);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  EXPECT_TRUE(has<SendStatus>());
  for (const WorkerEnd& end : status().ends) EXPECT_TRUE(end.after_stop);
  run(1);
  EXPECT_TRUE(status().ends.empty());
}

TEST_F(SupervisorTest, AStopOfAGenerationItNeverSawIsConfirmedSoThatNobodyWaits) {
  step(Stop{Generation(4), "over"});
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_EQ(status().generation, Generation(4));
  step(assignment(4));
  EXPECT_FALSE(has<StartWorkers>()) << "it has been told that 4 is over";
}

TEST_F(SupervisorTest, TheEndsOfAGenerationAreNotThoseOfOneThatItMissed) {
  run();
  killed(0, SIGKILL);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  EXPECT_EQ(status().ends.size(), 2u);
  step(Stop{Generation(1), "over"});
  EXPECT_EQ(status().generation, Generation(1));
  EXPECT_TRUE(status().ends.empty()) << "they are of generation 0";
}

TEST_F(SupervisorTest, AStopOfAnEarlierGenerationStopsNothing) {
  run(3);
  step(Stop{Generation(2), "late"});
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(supervisor_.state(), State::kRunning);
  exited(0, 0);
  exited(1, 0);
  step(Stop{Generation(2), "late"});
  step(TreeEmpty{});
  EXPECT_EQ(supervisor_.state(), State::kFinished) << "it was no reason to run this one again";
  step(Stop{Generation(2), "late"});
  EXPECT_EQ(supervisor_.state(), State::kFinished);
  step(Stop{Generation(4), "the service has gone on"});
  EXPECT_EQ(supervisor_.state(), State::kIdle) << "what is older than 4 is over";
}

TEST_F(SupervisorTest, AFinishedNodeRunsTheNextGeneration) {
  run();
  exited(0, 0);
  exited(1, 0);
  step(TreeEmpty{});
  step(Stop{Generation(0), "another node failed"});
  EXPECT_TRUE(has<ReleaseGeneration>());
  run(1);
}

TEST_F(SupervisorTest, AStopWhileLeftoversAreClearedMeansTheGenerationIsNotFinished) {
  run();
  exited(0, 0);
  exited(1, 0);
  step(Stop{Generation(0), "another node failed"});
  step(TreeEmpty{});
  EXPECT_EQ(status().phase, AgentPhase::kIdle);
}

TEST_F(SupervisorTest, EndWithTheVerdictWaitsForTheWorkersAndGivesItsCode) {
  run();
  step(End{Verdict{.success = false, .exit_code = 7, .headline = "h"}});
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_FALSE(exit_);
  killed(0, SIGTERM);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_ && exit_->verdict);
  EXPECT_EQ(exit_->code, 7);
}

TEST_F(SupervisorTest, AUsersSignalIsPassedOnAndDecidesTheExitCode) {
  run();
  step(UserSignal{SIGINT});
  EXPECT_TRUE(signals(SIGINT));
  EXPECT_EQ(status().leaving, SIGINT);
  exited(0, 1);
  exited(1, 0);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_ && leave_);
  EXPECT_EQ(exit_->code, 130);
  EXPECT_EQ(leave_->signal, SIGINT);
}

TEST_F(SupervisorTest, ASecondCtrlCKillsAtOnceButASecondSigtermDoesNot) {
  run();
  step(UserSignal{SIGTERM});
  step(UserSignal{SIGTERM});
  EXPECT_FALSE(has<KillTree>()) << "Slurm sends it twice";
  step(UserSignal{SIGINT});
  EXPECT_TRUE(has<KillTree>());
}

TEST_F(SupervisorTest, OneSigintThatComesBothDirectlyAndByTheGuardianIsOne) {
  using Way = UserSignal::Way;
  for (const auto& [first, second] :
       {std::pair(Way::kGuardian, Way::kDirect), std::pair(Way::kDirect, Way::kGuardian)}) {
    supervisor_ = Supervisor({.host = "node0", .slots = 2});
    run();
    step(UserSignal{SIGINT, first});
    step(UserSignal{SIGINT, second});
    EXPECT_FALSE(has<KillTree>()) << said();
    step(UserSignal{SIGINT, first});
    EXPECT_TRUE(has<KillTree>()) << "the user insists";
  }
}

TEST_F(SupervisorTest, ASecondCtrlCAfterTheEndOfTheWorkersEndsTheWaitForOtherNodes) {
  using Way = UserSignal::Way;
  run();
  step(UserSignal{SIGINT, Way::kDirect});
  exited(0, 1);
  exited(1, 1);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  step(UserSignal{SIGTERM});
  EXPECT_FALSE(has<LeaveAtOnce>()) << "Slurm sends it, too";
  step(UserSignal{SIGINT, Way::kGuardian});
  EXPECT_FALSE(has<LeaveAtOnce>()) << "the guardian's copy";
  step(UserSignal{SIGINT, Way::kDirect});
  EXPECT_TRUE(has<LeaveAtOnce>());
}

TEST_F(SupervisorTest, ASignalBeforeAnyWorkerEndsAtOnce) {
  step(UserSignal{SIGTERM});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 143);
}

TEST_F(SupervisorTest, AWorkerThatGotTheAgentsSignalFirstHasNotFailed) {
  run();
  killed(0, SIGTERM);
  EXPECT_FALSE(has<SendStatus>()) << "held back";
  EXPECT_TRUE(status().ends.empty());
  pass(milliseconds(100));
  step(UserSignal{SIGTERM});
  EXPECT_TRUE(status().ends.empty());
  EXPECT_EQ(status().leaving, SIGTERM);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 143);
}

TEST_F(SupervisorTest, AWorkerThatDiedOfSigtermAloneIsAFailureAfterAMoment) {
  run();
  killed(0, SIGTERM);
  pass(Supervisor::kSignalHoldBack);
  EXPECT_THAT(said(), HasSubstr("was killed by SIGTERM"));
  ASSERT_EQ(status().ends.size(), 1u);
}

TEST_F(SupervisorTest, ARealFailureDoesNotWaitForOneThatIsHeldBack) {
  run();
  killed(0, SIGTERM);
  exited(1, 9);
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_EQ(status().ends.size(), 2u);
}

TEST_F(SupervisorTest, ALostServiceMeansSigkillWithoutGrace) {
  run();
  step(ServiceLost{"gone", false});
  EXPECT_TRUE(has<KillTree>());
  EXPECT_FALSE(has<SignalTree>());
  killed(0, SIGKILL);
  killed(1, SIGKILL);
  step(TreeEmpty{});
  EXPECT_FALSE(exit_) << "it may come back";
  EXPECT_EQ(supervisor_.state(), State::kIdle);
  run(1);
}

TEST_F(SupervisorTest, AServiceLostForGoodEndsTheJobHereWithADocumentedCode) {
  run();
  step(ServiceLost{"its node is gone", true});
  killed(0, SIGKILL);
  killed(1, SIGKILL);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 67);
}

TEST_F(SupervisorTest, ARefusalEndsWithItsReason) {
  step(ServiceRefused{"other version"});
  EXPECT_THAT(said(), HasSubstr("other version"));
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 66);
}

TEST_F(SupervisorTest, WithoutItsGuardianTheAgentKillsAndLeaves) {
  run();
  step(GuardianLost{});
  EXPECT_TRUE(has<KillTree>());
  killed(0, SIGKILL);
  killed(1, SIGKILL);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_ && leave_);
  EXPECT_EQ(exit_->code, 70);
  EXPECT_THAT(leave_->reason, HasSubstr("guardian"));
}

TEST_F(SupervisorTest, AWorkerThatCannotBeStartedFailsTheGeneration) {
  run();
  step(WorkersEnded{{one(0, EndKind::kNotStarted, ENOEXEC)}});
  EXPECT_TRUE(signals(SIGTERM));
  ASSERT_EQ(status().ends.size(), 1u);
  EXPECT_EQ(status().ends[0].kind, EndKind::kNotStarted);
}

TEST_F(SupervisorTest, TheFirstVerdictIsTheOne) {
  run();
  step(End{Verdict{.success = false, .exit_code = 3, .headline = "first"}});
  step(UserSignal{SIGTERM});
  step(End{Verdict{.success = false, .exit_code = 4, .headline = "second"}});
  killed(0, SIGTERM);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_ && exit_->verdict);
  EXPECT_EQ(exit_->code, 3);
  EXPECT_EQ(exit_->verdict->headline, "first");
}

TEST_F(SupervisorTest, AfterExitNothingHappens) {
  step(UserSignal{SIGTERM});
  step(assignment(0));
  EXPECT_TRUE(actions_.empty());
  EXPECT_FALSE(supervisor_.deadline());
}

// --- checkpoints ---

TEST_F(SupervisorTest, TellsTheServiceOfAnAnnouncedCheckpoint) {
  run();
  EXPECT_EQ(status().checkpoints, 0);
  step(CheckpointAnnounced{Generation(0)});
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_EQ(status().checkpoints, 1);
}

TEST_F(SupervisorTest, ManyCheckpointsAreToldOfOnceInASecond) {
  run();
  step(CheckpointAnnounced{Generation(0)});
  now_ += milliseconds(300);
  for (int i = 0; i < 100; ++i) {
    step(CheckpointAnnounced{Generation(0)});
    EXPECT_FALSE(has<SendStatus>());
  }
  ASSERT_TRUE(supervisor_.deadline());
  EXPECT_EQ(*supervisor_.deadline(), now_ + milliseconds(700));
  now_ = *supervisor_.deadline();
  step(Tick{});
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_EQ(status().checkpoints, 101);
  EXPECT_EQ(supervisor_.deadline(), std::nullopt);
}

TEST_F(SupervisorTest, ACheckpointOfAnotherGenerationIsNone) {
  step(CheckpointAnnounced{Generation(0)});
  EXPECT_FALSE(has<SendStatus>()) << "nothing runs";
  run();
  step(CheckpointAnnounced{Generation(0)});
  step(CheckpointAnnounced{Generation(0)});
  step(Stop{Generation(0), "another one failed"});
  step(CheckpointAnnounced{Generation(0)});
  EXPECT_FALSE(has<SendStatus>()) << "it is being ended";
  exited(0, 1);
  exited(1, 1);
  step(TreeEmpty{});
  run(1);
  EXPECT_EQ(status().checkpoints, 0);
  EXPECT_EQ(supervisor_.deadline(), std::nullopt);
  step(CheckpointAnnounced{Generation(0)});
  EXPECT_EQ(status().checkpoints, 0) << "it was on its way when 1 began";
}

// --- signals that end nothing ---

TEST_F(SupervisorTest, WhatIsForTheWorkersIsRelayedWhileTheyRun) {
  step(UserSignal{SIGUSR1});
  EXPECT_TRUE(actions_.empty()) << "nobody runs";
  run();
  for (const int signal : {SIGUSR1, SIGUSR2, SIGCONT}) {
    step(UserSignal{signal});
    ASSERT_TRUE(has<SignalWorkers>());
    EXPECT_EQ(find<SignalWorkers>()->signal, signal);
    EXPECT_EQ(supervisor_.state(), State::kRunning);
  }
  step(UserSignal{SIGUSR1, UserSignal::Way::kManager});
  EXPECT_TRUE(actions_.empty()) << "Slurm has sent it to them";
}

TEST_F(SupervisorTest, StoppedWorkersGoOnWhenTheyAreLetAndEndWhenTheyMust) {
  run();
  step(UserSignal{SIGTSTP});
  EXPECT_TRUE(has<SuspendTree>());
  step(UserSignal{SIGTSTP});
  EXPECT_FALSE(has<SuspendTree>()) << "they are";
  step(UserSignal{SIGCONT});
  EXPECT_TRUE(has<ResumeTree>());
  EXPECT_FALSE(has<SignalWorkers>());
  step(UserSignal{SIGTSTP});
  step(UserSignal{SIGTERM, UserSignal::Way::kManager});
  EXPECT_TRUE(has<ResumeTree>()) << "who is stopped cannot end";
}

TEST_F(SupervisorTest, WhatSlurmHasSentToTheWorkersIsNotSentAgain) {
  run();
  step(UserSignal{SIGTERM, UserSignal::Way::kManager});
  EXPECT_FALSE(has<SignalTree>());
  EXPECT_EQ(supervisor_.state(), State::kStopping);
  EXPECT_EQ(supervisor_.deadline(), now_ + seconds(30));
  step(UserSignal{SIGTERM, UserSignal::Way::kGuardian});
  EXPECT_FALSE(has<SignalTree>());
  killed(0, SIGTERM);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 143);
}

// --- --checkpoint-signal ---

class CheckpointSignalTest : public SupervisorTest {
 protected:
  CheckpointSignalTest() {
    supervisor_ = Supervisor({.host = "node0",
                              .slots = 2,
                              .grace = seconds(30),
                              .kill_timeout = seconds(20),
                              .checkpoint_signal = SIGUSR1});
  }
};

TEST_F(CheckpointSignalTest, WorkersAreAskedOnceAndWhenAllEndWellTheJobIsToBeStartedAgain) {
  run();
  step(UserSignal{SIGUSR1});
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_THAT(said(), HasSubstr("SIGUSR1: asking 2 workers to save and exit"));
  step(UserSignal{SIGUSR1, UserSignal::Way::kDirect});
  EXPECT_TRUE(actions_.empty()) << "two requests are one";
  exited(0, 0);
  exited(1, 0);
  step(TreeEmpty{});
  EXPECT_EQ(supervisor_.state(), State::kFinished);
  step(End{Verdict{.success = true}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

TEST_F(CheckpointSignalTest, AskedByACommandItIsTheSameRequest) {
  run();
  step(ForwardSignal{.generation = Generation(0), .signal = SIGUSR1});
  ASSERT_TRUE(has<SignalWorkers>());
  step(UserSignal{SIGUSR1});
  EXPECT_FALSE(has<SignalWorkers>()) << "one request";
  exited(0, 0);
  exited(1, 0);
  step(TreeEmpty{});
  step(End{Verdict{.success = true}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

TEST_F(CheckpointSignalTest, ASignalForOneRankIsNoRequest) {
  run();
  step(ForwardSignal{.generation = Generation(0), .signal = SIGUSR1, .rank = Rank(2)});
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_EQ(find<SignalWorkers>()->rank, LocalRank(0));
  step(UserSignal{SIGUSR1});
  EXPECT_TRUE(has<SignalWorkers>());
}

TEST_F(CheckpointSignalTest, AFailureAfterTheRequestIsOne) {
  run();
  step(UserSignal{SIGUSR1});
  exited(0, 3);
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_EQ(supervisor_.state(), State::kStopping);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  step(End{Verdict{.exit_code = 3}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 3);
}

TEST_F(CheckpointSignalTest, WorkersOfTheNextGenerationAreAskedAsSoonAsTheyAreStarted) {
  run();
  step(UserSignal{SIGUSR1, UserSignal::Way::kManager});
  EXPECT_FALSE(has<SignalWorkers>()) << "Slurm has told them";
  EXPECT_TRUE(status().asked_to_save);
  exited(0, 3);
  killed(1, SIGTERM);
  step(TreeEmpty{});
  step(assignment(1));
  ASSERT_TRUE(has<StartWorkers>());
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_EQ(find<SignalWorkers>()->signal, SIGUSR1);
  EXPECT_THAT(said(), HasSubstr("SIGUSR1: asking 2 workers to save and exit"));
}

TEST_F(CheckpointSignalTest, WorkersThatDoNotKnowItDieOfItWhichIsNoFailure) {
  run();
  step(UserSignal{SIGUSR1});
  killed(0, SIGUSR1);
  EXPECT_EQ(supervisor_.state(), State::kStopping);
  killed(1, SIGUSR1);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 128 + SIGUSR1) << "nothing was saved";
}

TEST_F(CheckpointSignalTest, WhereNothingRunsTheNodeLeavesAtOnce) {
  step(UserSignal{SIGUSR1});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
  ASSERT_TRUE(leave_);
  EXPECT_THAT(leave_->reason, HasSubstr("it got SIGUSR1, the order to save and exit"));
  EXPECT_THAT(said(),
              HasSubstr("SIGUSR1: no worker runs that could save; this node leaves the job"));
}

// --- requests of a user ---

// As in a job of Slurm with --checkpoint-signal=USR1.
class SaveOnTermTest : public SupervisorTest {
 protected:
  SaveOnTermTest() {
    supervisor_ = Supervisor({.host = "node0",
                              .slots = 2,
                              .grace = seconds(30),
                              .kill_timeout = seconds(20),
                              .checkpoint_signal = SIGUSR1,
                              .saves_on_term = true});
  }
};

TEST_F(SaveOnTermTest, WorkersThatDoNotSaveGetSigtermAndThenSigkillWithinTheGrace) {
  run();
  step(UserSignal{SIGTERM, UserSignal::Way::kManager});
  pass(seconds(23));
  EXPECT_TRUE(actions_.empty());
  pass(seconds(1));
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_THAT(said(), HasSubstr("2 workers did not save in time after SIGTERM"));
  EXPECT_THAT(said(), HasSubstr("passing it on to 2 workers, which have 6.0 s to end"));
  EXPECT_EQ(status().leaving, SIGTERM);
  pass(seconds(5));
  EXPECT_FALSE(has<KillTree>());
  pass(seconds(1));
  EXPECT_TRUE(has<KillTree>());
  killed(0, SIGKILL);
  killed(1, SIGKILL);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 143);
}

// Slurm repeats SIGTERM. The other nodes may still save.
TEST_F(SaveOnTermTest, SigtermAfterTheWorkersHaveSavedIsRemembered) {
  run();
  step(UserSignal{SIGTERM});
  exited(0, 0);
  exited(1, 0);
  ASSERT_EQ(supervisor_.state(), State::kStopping);
  step(UserSignal{SIGTERM});
  EXPECT_TRUE(actions_.empty());
  step(TreeEmpty{});
  ASSERT_EQ(supervisor_.state(), State::kFinished);
  step(UserSignal{SIGTERM});
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(status().leaving, 0);
  step(End{Verdict{.success = true}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

TEST_F(SaveOnTermTest, AStopOfAPersonSavesNothing) {
  run();
  step(UserSignal{SIGTERM, UserSignal::Way::kDirect, UserSignal::Meaning::kStop});
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_FALSE(has<SignalWorkers>());
  step(UserSignal{SIGINT, UserSignal::Way::kDirect});
  EXPECT_TRUE(has<KillTree>()) << "at once";
}

// With proctrack/cgroup, Slurm's SIGTERM does not reach the workers.
TEST_F(SaveOnTermTest, AWorkerThatDiesOfAnotherSigtermEndsTheRest) {
  run();
  step(UserSignal{SIGTERM, UserSignal::Way::kGuardian});
  pass(seconds(10));
  killed(0, SIGTERM);
  EXPECT_TRUE(signals(SIGTERM));
  pass(seconds(20));
  EXPECT_TRUE(has<KillTree>()) << "the grace began with the first SIGTERM";
}

TEST_F(SaveOnTermTest, AFailureDuringTheSaveDoesNotProlongTheGrace) {
  run();
  step(UserSignal{SIGTERM});
  pass(seconds(20));
  exited(0, 1);
  ASSERT_EQ(supervisor_.state(), State::kStopping);
  pass(seconds(4));
  pass(seconds(5));
  EXPECT_FALSE(has<KillTree>());
  pass(seconds(1));
  EXPECT_TRUE(has<KillTree>());
}

TEST_F(SaveOnTermTest, WorkersGetTheCheckpointSignalAndNotSigterm) {
  run();
  step(UserSignal{SIGTERM});
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_EQ(find<SignalWorkers>()->signal, SIGUSR1);
  EXPECT_FALSE(has<SignalTree>());
  EXPECT_EQ(status().leaving, 0) << "the other nodes let their workers save, too";
  EXPECT_TRUE(status().asked_to_save);
  step(UserSignal{SIGTERM, UserSignal::Way::kDirect});
  EXPECT_TRUE(actions_.empty()) << "Slurm repeats SIGTERM";
  exited(0, 0);
  exited(1, 0);
  step(TreeEmpty{});
  step(End{Verdict{.success = true}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

TEST_F(SaveOnTermTest, CtrlCStillEndsTheWorkers) {
  run();
  step(UserSignal{SIGTERM});
  step(UserSignal{SIGINT});
  EXPECT_TRUE(signals(SIGINT));
  EXPECT_EQ(supervisor_.state(), State::kStopping);
}

TEST_F(SaveOnTermTest, AWorkerThatGotSlurmsSigtermAndDiedOfItHasNotFailed) {
  run();
  step(UserSignal{SIGTERM, UserSignal::Way::kManager});
  killed(0, SIGTERM);
  EXPECT_EQ(supervisor_.state(), State::kStopping);
  EXPECT_TRUE(status().ends.empty());
  killed(1, SIGTERM);
  step(TreeEmpty{});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 143);
}

TEST_F(SaveOnTermTest, OneThatDiedJustBeforeIsAnOrderToo) {
  run();
  killed(0, SIGTERM);
  step(UserSignal{SIGTERM, UserSignal::Way::kManager});
  EXPECT_EQ(supervisor_.state(), State::kStopping);
  EXPECT_TRUE(status().ends.empty());
}

TEST_F(SaveOnTermTest, ANodeThatWaitsForOthersLeavesWhenTheGraceIsOver) {
  run();
  step(UserSignal{SIGTERM});
  exited(0, 0);
  exited(1, 0);
  step(TreeEmpty{});
  ASSERT_EQ(supervisor_.state(), State::kFinished);
  pass(seconds(24));
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 143);
}

TEST_F(SupervisorTest, AStopAtOnceTakesTheGraceAway) {
  run();
  step(Stop{Generation(0), "ada asked for it", true});
  EXPECT_TRUE(has<KillTree>());
  EXPECT_THAT(said(), HasSubstr("killing 2 workers: ada asked for it"));
  exited(0, 0);
  EXPECT_EQ(status().phase, AgentPhase::kStopping);
}

TEST_F(SupervisorTest, AStopAtOnceEndsTheGraceThatHasBegun) {
  run();
  step(Stop{Generation(0), "ada asked for it"});
  EXPECT_TRUE(signals(SIGTERM));
  step(Stop{Generation(0), "ada asked for it", true});
  EXPECT_TRUE(has<KillTree>());
  step(Stop{Generation(0), "ada asked for it", true});
  EXPECT_FALSE(has<KillTree>()) << "once";
}

TEST_F(SupervisorTest, ASignalIsPassedOnToTheWorkersOfItsGenerationAlone) {
  run(1);
  step(ForwardSignal{Generation(0), SIGUSR1, {}});
  EXPECT_FALSE(has<SignalWorkers>());
  step(ForwardSignal{Generation(1), SIGUSR1, {}});
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_EQ(find<SignalWorkers>()->signal, SIGUSR1);
  EXPECT_FALSE(find<SignalWorkers>()->rank);
  step(ForwardSignal{Generation(1), SIGUSR1, Rank(3)});
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_EQ(find<SignalWorkers>()->rank, LocalRank(1));
  step(ForwardSignal{Generation(1), SIGUSR1, Rank(4)});
  EXPECT_FALSE(has<SignalWorkers>()) << "it is another node's";
  step(Stop{Generation(1), "over"});
  step(ForwardSignal{Generation(1), SIGUSR1, {}});
  EXPECT_FALSE(has<SignalWorkers>());
}

TEST_F(SupervisorTest, WhoDiesOfASignalThatDdprunWasAskedToSendIsKnownByIt) {
  run(1);
  step(ForwardSignal{Generation(1), SIGKILL, Rank(3)});
  killed(1, SIGKILL);
  killed(0, SIGKILL);
  const AgentStatus status = supervisor_.status(now_);
  ASSERT_EQ(status.ends.size(), 2u);
  EXPECT_EQ(status.ends[0].rank, Rank(3));
  EXPECT_TRUE(status.ends[0].on_request);
  EXPECT_EQ(describe(status.ends[0]),
            "rank 3 (local rank 1 on node0, pid 101) was killed by SIGKILL, which ddprun sent on "
            "request");
  EXPECT_FALSE(status.ends[1].on_request) << "it was meant for the other";
}

TEST_F(SupervisorTest, ASignalOfAnEarlierGenerationIsNoRequestInTheNext) {
  run(1);
  step(ForwardSignal{Generation(1), SIGKILL, {}});
  killed(0, SIGKILL);
  killed(1, SIGKILL);
  step(TreeEmpty{});
  run(2);
  killed(0, SIGKILL);
  EXPECT_FALSE(supervisor_.status(now_).ends.at(0).on_request);
}

// --- hangs ---

TEST_F(SupervisorTest, OfAHangTheServiceIsToldWhatEveryWorkerDoesAndNobodyIsStoppedYet) {
  run();
  step(WorkersHang{});
  ASSERT_TRUE(has<LookAtWorkers>());
  step(WorkersHang{});
  EXPECT_TRUE(actions_.empty()) << "one look is enough";
  step(WorkersSeen{Generation(0), {{.local_rank = LocalRank(1), .pid = 7}}});
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_FALSE(has<SignalTree>());
  const AgentStatus status = supervisor_.status(now_);
  EXPECT_EQ(status.phase, AgentPhase::kRunning);
  ASSERT_EQ(status.snapshots.size(), 1u);
  EXPECT_EQ(status.snapshots[0].rank, Rank(3));
  EXPECT_EQ(status.snapshots[0].host, "node0");
  step(Stop{Generation(0), "a hang", false, true});
  EXPECT_FALSE(has<LookAtWorkers>());
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_EQ(supervisor_.status(now_).snapshots.size(), 1u) << "until the next generation";
}

TEST_F(SupervisorTest, WhenAnotherNodeHangsItLooksBeforeItStops) {
  run();
  step(Stop{Generation(0), "a hang", false, true});
  EXPECT_TRUE(has<LookAtWorkers>());
  EXPECT_FALSE(has<SignalTree>());
  step(WorkersSeen{Generation(0), {{.local_rank = LocalRank(0)}}});
  EXPECT_TRUE(signals(SIGTERM));
  EXPECT_TRUE(has<SendStatus>());
  EXPECT_THAT(said(), HasSubstr("a hang"));
}

TEST_F(SupervisorTest, ALookThatSeesNobodyDoesNotKeepItFromStopping) {
  run();
  step(Stop{Generation(0), "a hang", false, true});
  step(WorkersSeen{Generation(0), {}});
  EXPECT_TRUE(signals(SIGTERM));
}

TEST_F(SupervisorTest, AWorkerThatFailsDuringTheLookIsAnOrdinaryFailure) {
  run();
  step(WorkersHang{});
  exited(0, 3);
  EXPECT_TRUE(signals(SIGTERM));
  step(WorkersSeen{Generation(0), {{.local_rank = LocalRank(1)}}});
  EXPECT_TRUE(actions_.empty());
  EXPECT_TRUE(supervisor_.status(now_).snapshots.empty());
}

TEST_F(SupervisorTest, ALookAtAnEarlierGenerationIsPassedOver) {
  run();
  step(WorkersHang{});
  exited(0, 3);
  exited(1, 3);
  step(TreeEmpty{});
  run(1);
  step(WorkersSeen{Generation(0), {{.local_rank = LocalRank(1)}}});
  EXPECT_TRUE(actions_.empty());
  step(WorkersHang{});
  EXPECT_TRUE(has<LookAtWorkers>());
}

TEST_F(SupervisorTest, AStopAtOnceDoesNotWaitForALook) {
  run();
  step(Stop{Generation(0), "stop --now", true, true});
  EXPECT_TRUE(has<KillTree>());
}

TEST_F(SupervisorTest, WhoWaitsRemembersTheNewestGenerationThatItHasNoPartIn) {
  run(2);
  exited(0, 3);
  exited(1, 3);
  step(TreeEmpty{});
  EXPECT_EQ(supervisor_.status(now_).ends.size(), 2u);
  step(Wait{"a spare", Generation(2)});
  EXPECT_EQ(supervisor_.status(now_).ends.size(), 2u) << "of the generation that it was in";
  step(Wait{"a spare", Generation(3)});
  EXPECT_EQ(supervisor_.status(now_).generation, Generation(3));
  EXPECT_TRUE(supervisor_.status(now_).ends.empty());
  step(Wait{"an older service does not say"});
  EXPECT_EQ(supervisor_.status(now_).generation, Generation(3));
  step(assignment(3));
  EXPECT_FALSE(has<StartWorkers>());
  run(4);
}

// --- --node-check --------------------------------------------------------------------------------

class CheckedNode : public SupervisorTest {
 protected:
  CheckedNode() {
    supervisor_ = Supervisor({.host = "node0",
                              .slots = 2,
                              .grace = seconds(30),
                              .kill_timeout = seconds(20),
                              .checkpoint_signal = SIGUSR1,
                              .checks_node = true});
    step(assignment(0));
    EXPECT_TRUE(has<CheckNode>());
    EXPECT_FALSE(has<StartWorkers>());
    EXPECT_EQ(supervisor_.state(), State::kChecking);
  }
  void checked(const std::string& fault, int generation = 0) {
    step(NodeChecked{Generation(generation), fault});
  }
};

TEST_F(CheckedNode, RunsForTheServiceWhileItIsCheckedAndStartsOnceItIsFit) {
  EXPECT_EQ(status().phase, AgentPhase::kRunning) << "another generation must not begin now";
  step(assignment(0));
  EXPECT_TRUE(actions_.empty()) << "the assignment is repeated";
  checked("");
  ASSERT_TRUE(has<StartWorkers>() && has<SendStatus>());
  EXPECT_EQ(find<StartWorkers>()->assignment.generation, Generation(0));
  checked("too late");
  EXPECT_TRUE(actions_.empty());
  EXPECT_EQ(status().unfit, "");
}

TEST_F(CheckedNode, SaysWhyItIsNotFitAndNeverStartsWorkers) {
  checked("memory: 1 MB/s (limit 500 MB/s)");
  EXPECT_TRUE(has<ReleaseGeneration>() && has<SendStatus>());
  EXPECT_THAT(said(), HasSubstr("--node-check: node0 is not fit: memory: 1 MB/s"));
  EXPECT_EQ(status().phase, AgentPhase::kIdle);
  EXPECT_EQ(status().generation, Generation(0));
  EXPECT_EQ(status().unfit, "memory: 1 MB/s (limit 500 MB/s)");
  step(assignment(1));
  EXPECT_FALSE(has<CheckNode>() || has<StartWorkers>());
  EXPECT_TRUE(has<SendStatus>()) << "an older service learns that it is idle";
  EXPECT_EQ(status().generation, Generation(1));
}

TEST_F(CheckedNode, AStopDropsTheCheckAndItsResult) {
  step(Stop{.generation = Generation(0), .reason = "another node is not fit"});
  EXPECT_TRUE(has<ReleaseGeneration>() && has<SendStatus>());
  EXPECT_EQ(status().phase, AgentPhase::kIdle);
  EXPECT_EQ(status().generation, Generation(0));
  checked("memory: slow");
  EXPECT_TRUE(actions_.empty());
  step(assignment(1));
  EXPECT_TRUE(has<CheckNode>()) << "each generation is checked";
  checked("", 0);
  EXPECT_FALSE(has<StartWorkers>()) << "this was the check of another generation";
  checked("", 1);
  EXPECT_TRUE(has<StartWorkers>());
}

TEST_F(CheckedNode, ALostServiceEndsTheCheck) {
  step(ServiceLost{.reason = "no answer"});
  EXPECT_TRUE(has<ReleaseGeneration>());
  checked("");
  EXPECT_FALSE(has<StartWorkers>());
  EXPECT_EQ(status().phase, AgentPhase::kIdle);
}

TEST_F(CheckedNode, TheEndOfTheJobAndSignalsEndIt) {
  Supervisor other = supervisor_;
  step(End{.verdict = {.exit_code = 65, .headline = "too few"}});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, 65);
  exit_.reset();
  supervisor_ = std::move(other);
  step(UserSignal{SIGTERM});
  ASSERT_TRUE(exit_ && leave_);
  EXPECT_EQ(exit_->code, 143);
}

TEST_F(CheckedNode, WorkersAreAskedToSaveOnceTheyAreStarted) {
  step(UserSignal{SIGUSR1});
  EXPECT_FALSE(exit_);
  checked("");
  ASSERT_TRUE(has<SignalWorkers>());
  EXPECT_EQ(find<SignalWorkers>()->signal, SIGUSR1);
}

TEST_F(CheckedNode, LeavesIfItWasAskedToSaveAndIsNotFit) {
  step(UserSignal{SIGUSR1});
  checked("memory: slow");
  EXPECT_TRUE(has<ReleaseGeneration>());
  EXPECT_FALSE(has<SendStatus>()) << "it has left";
  ASSERT_TRUE(exit_ && leave_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

TEST_F(CheckedNode, LeavesIfItWasAskedToSaveAndTheCheckIsStopped) {
  step(UserSignal{SIGUSR1});
  step(Stop{.generation = Generation(0), .reason = "another node is not fit"});
  EXPECT_TRUE(has<ReleaseGeneration>());
  EXPECT_FALSE(has<SendStatus>()) << "it has left";
  ASSERT_TRUE(exit_ && leave_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

TEST_F(CheckedNode, LeavesIfItWasAskedToSaveAndTheServiceIsLost) {
  step(UserSignal{SIGUSR1});
  step(ServiceLost{.reason = "no answer"});
  ASSERT_TRUE(exit_);
  EXPECT_EQ(exit_->code, to_int(ExitCode::kSaved));
}

}  // namespace
}  // namespace ddprun
