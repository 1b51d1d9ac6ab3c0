// Tests `ddprun status`, `stop`, `restart` and `signal`: the real binary, on running jobs.

#include <gmock/gmock.h>
#include <grp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/exit_codes.h"
#include "tests/integration/launcher/control_jobs_frame.h"
#include "tests/support/held_port.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

// --- status ---

TEST_F(ControlTest, StatusTellsWhatRunsWhere) {
  auto job = running_job("train", {"--max-restarts=3"});
  const CommandResult status = run_ddprun({"status"});
  ASSERT_EQ(status.code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("job 'train': running, generation 0"));
  EXPECT_THAT(status.out, HasSubstr("restarts: 0 of 3 used"));
  EXPECT_THAT(status.out, HasSubstr("ranks 0-1"));
  EXPECT_THAT(status.out, HasSubstr("ddprun " + std::to_string(job->pid())));
  EXPECT_THAT(status.out, HasSubstr("running  since 20"));
  const json all = run_ddprun({"status", "--json", "train"}).object();
  EXPECT_EQ(all["job"]["id"], "train");
  ASSERT_EQ(all["agents"].size(), 1u);
  const json& workers = all["agents"][0]["workers"];
  ASSERT_EQ(workers.size(), 2u);
  EXPECT_EQ(workers[1]["rank"], 1);
  EXPECT_EQ(workers[1]["state"], "running");
  EXPECT_EQ(kill(workers[1]["pid"].get<pid_t>(), 0), 0) << "it is the worker's process id";
  const json& ranks = all["agents"][0]["ranks"];
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[1]["pid"], workers[1]["pid"]);
  EXPECT_GT(ranks[1]["memory_bytes"], 10'000);
  EXPECT_GE(ranks[1]["cpu_percent"], 0);
  EXPECT_EQ(all["job"]["ranks"].size(), 2u) << "the service has them, too";
  EXPECT_EQ(run_ddprun({"status", std::to_string(job->pid())}).code, 0);
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(ControlTest, StatusTellsWhyEarlierGenerationsFailed) {
  auto job = launch_shell({"--max-restarts=2", "--rdzv-id=train"},
                          until_go_after("[ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 7; echo up"));
  ASSERT_TRUE(job->wait_for_out("up")) << job->err();
  const CommandResult status = run_ddprun({"status"});
  EXPECT_THAT(status.out, HasSubstr("generation 1"));
  EXPECT_THAT(status.out, HasSubstr("restarts: 1 of 2 used"));
  EXPECT_THAT(status.out, HasSubstr("failures so far:\n  generation 0, 20"));
  EXPECT_THAT(status.out, HasSubstr("exited with code 7"));
  const json failures = run_ddprun({"status", "--json"}).object()["job"]["failures"];
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0]["kind"], "exit_code");
  EXPECT_EQ(failures[0]["first"][0]["exit_code"], 7);
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(ControlTest, WithoutAJobThereIsALineAndACodeOfItsOwn) {
  for (const Arguments& command :
       {Arguments{"status"}, {"logs"}, {"stop"}, {"restart"}, {"signal", "USR1"}}) {
    const CommandResult none = run_ddprun(command);
    EXPECT_EQ(none.code, to_int(ExitCode::kNoJob));
    EXPECT_THAT(none.err, HasSubstr("error: no job of user "));
    EXPECT_EQ(lines_of(none.err).size(), 1u) << none.err;
    EXPECT_EQ(none.out, "");
  }
  const CommandResult named = run_ddprun({"stop", "--json", "train"});
  EXPECT_EQ(named.code, to_int(ExitCode::kNoJob));
  EXPECT_EQ(named.object()["ok"], false);
  EXPECT_THAT(named.err, HasSubstr("no job 'train'"));
}

TEST_F(ControlTest, OfSeveralJobsOneHasToBeNamed) {
  auto one = running_job("one");
  auto two = running_job("two");
  const CommandResult which = run_ddprun({"stop"});
  EXPECT_EQ(which.code, to_int(ExitCode::kUsage));
  EXPECT_THAT(which.err, HasSubstr("several jobs run here"));
  EXPECT_THAT(which.err, HasSubstr("job 'one'"));
  EXPECT_THAT(which.err, HasSubstr("ddprun " + std::to_string(two->pid())));
  const CommandResult as_json = run_ddprun({"status", "--json"});
  EXPECT_EQ(as_json.object()["ok"], false);
  EXPECT_EQ(as_json.object()["agents"].size(), 2u);
  for (const Arguments& bad : {Arguments{"signal", "--json", "FOO", "one"},
                               {"logs", "--json", "--rank", "x"},
                               {"doctor", "--json", "--bogus"}}) {
    const CommandResult refused = run_ddprun(bad);
    EXPECT_EQ(refused.code, to_int(ExitCode::kUsage));
    EXPECT_EQ(refused.object()["ok"], false) << bad.front();
    EXPECT_THAT(refused.err, HasSubstr(refused.object().value("error", "?")));
  }
  EXPECT_EQ(run_ddprun({"stop", "one"}).code, 0);
  EXPECT_EQ(one->wait(), 143);
  EXPECT_THAT(run_ddprun({"status"}).out, HasSubstr("job 'two'"));
  let_go();
  EXPECT_EQ(two->wait(), 0);
}

TEST_F(ControlTest, BadCommandLinesHaveOneLine) {
  const std::vector<std::pair<Arguments, std::string>> bad{
      {{"status", "--bogus"}, "unknown option --bogus"},
      {{"logs", "--rank=x"}, "--rank: invalid value 'x' (expected a rank"},
      {{"logs", "-n"}, "-n: the value is missing (expected N)"},
      {{"signal"}, "the signal is missing"},
      {{"signal", "BOGUS"}, "signal: invalid value 'BOGUS' (expected USR1"},
      {{"stop", "one", "two"}, "'ddprun stop' takes one job"},
      {{"stop", "--json=yes"}, "--json: takes no value"},
      {{"restart", "--rdzv-endpoint=h:1"}, "give the id of a job"},
      {{"logs", "--rdzv-endpoint=h:1"}, "give the id of a job"},
  };
  for (const auto& [arguments, words] : bad) {
    const CommandResult refused = run_ddprun(arguments);
    EXPECT_EQ(refused.code, 2) << refused.err;
    EXPECT_THAT(refused.err, HasSubstr(words));
    EXPECT_EQ(lines_of(refused.err).size(), 1u) << refused.err;
  }
  EXPECT_THAT(run_ddprun({"stop", "--help"}).out, HasSubstr("--now"));
}

// --- stop ---

TEST_F(ControlTest, StopEndsWorkersThatIgnoreSigtermAfterTheirGrace) {
  auto job = launch_shell({"--shutdown-grace=0.5", "--rdzv-id=train"},
                          "trap '' TERM; " + until_go_after("echo up"));
  ASSERT_TRUE(job->wait_for_out("up"));
  const CommandResult stopped = run_ddprun({"stop"});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("ended with exit code 143: the job was stopped: ada on "));
  EXPECT_EQ(job->wait(), 143);
}

TEST_F(ControlTest, StopNowDoesNotWaitForTheGrace) {
  auto job = launch_shell({"--shutdown-grace=600", "--rdzv-id=train"},
                          "trap '' TERM; " + until_go_after("echo up"));
  ASSERT_TRUE(job->wait_for_out("up"));
  auto gentle = launch({"stop", "--timeout=600"});
  ASSERT_TRUE(job->wait_for_err("stopping 1 worker"));
  const CommandResult stopped = run_ddprun({"stop", "--now", "--json"});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_EQ(stopped.object()["exit_code"], 143);
  EXPECT_EQ(job->wait(), 143);
  EXPECT_EQ(gentle->wait(), 0) << gentle->err();
}

TEST_F(ControlTest, StopSaysWhenTheTimeIsOver) {
  auto job = launch_shell({"--shutdown-grace=600"}, "trap '' TERM; " + until_go_after("echo up"));
  ASSERT_TRUE(job->wait_for_out("up"));
  const CommandResult late = run_ddprun({"stop", "--timeout=0.2"});
  EXPECT_EQ(late.code, to_int(ExitCode::kNoAnswer));
  EXPECT_THAT(late.err, HasSubstr("it did not end within 200 ms"));
  EXPECT_EQ(run_ddprun({"stop", "--now"}).code, 0);
  EXPECT_EQ(job->wait(), 143);
}

// --- restart and signal ---

TEST_F(ControlTest, RestartOfTwoNodesIsANewGenerationAndUsesNoBudget) {
  const HeldPort held;
  const Arguments options{"--max-restarts=1"};
  const auto join = [&] {
    return launch(node(held.endpoint(), options,
                       until_go_after("echo begun $TORCHELASTIC_RESTART_COUNT rank $RANK")));
  };
  auto one = join();
  auto two = join();
  ASSERT_TRUE(one->wait_for_out("begun 0") && two->wait_for_out("begun 0")) << one->err();
  const CommandResult status = run_ddprun({"status", "job", "--json"});
  EXPECT_EQ(status.object()["agents"].size(), 2u) << status.out << status.err;
  EXPECT_EQ(status.object()["job"]["nodes"].size(), 2u);
  const CommandResult restarted = run_ddprun({"restart", "job"});
  ASSERT_EQ(restarted.code, 0) << restarted.err;
  EXPECT_THAT(restarted.out, HasSubstr("this uses no restart"));
  for (ChildProcess* node : {one.get(), two.get()}) {
    EXPECT_TRUE(node->wait_for_err("generation 1: starting 1 worker (restart asked for by ada"))
        << node->err();
    EXPECT_TRUE(eventually([&] { return lines_of(node->out()).size() == 2; })) << node->out();
    EXPECT_THAT(node->out(), Not(HasSubstr("begun 1"))) << "TORCHELASTIC_RESTART_COUNT";
  }
  EXPECT_THAT(run_ddprun({"status", "job"}).out, HasSubstr("restarts: 0 of 1 used"));
  let_go();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(two->wait(), 0) << two->err();
}

TEST_F(ControlTest, StopOfTwoNodesEndsBoth) {
  const HeldPort held;
  const auto join = [&] { return launch(node(held.endpoint(), {}, until_go_after("echo begun"))); };
  auto one = join();
  auto two = join();
  ASSERT_TRUE(one->wait_for_out("begun") && two->wait_for_out("begun")) << one->err();
  const CommandResult stopped = run_ddprun({"stop", std::to_string(two->pid())});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_EQ(one->wait(), 143) << one->err();
  EXPECT_EQ(two->wait(), 143) << two->err();
}

TEST_F(ControlTest, SignalGoesToAllWorkersOrToOneRank) {
  auto job =
      launch_shell({"--nproc-per-node=2"},
                   "trap 'echo rank $RANK got USR1' USR1; trap 'echo rank $RANK got USR2' USR2; " +
                       until_go_after("echo rank $RANK is up"));
  ASSERT_TRUE(job->wait_for_out("rank 0 is up") && job->wait_for_out("rank 1 is up"));
  const CommandResult sent = run_ddprun({"signal", "--rank=1", "USR2"});
  EXPECT_EQ(sent.code, 0) << sent.err;
  EXPECT_EQ(sent.out, "sending SIGUSR2 to 1 worker on 1 node\n");
  EXPECT_TRUE(job->wait_for_out("rank 1 got USR2"));
  EXPECT_EQ(run_ddprun({"signal", "sigusr1"}).code, 0);
  EXPECT_TRUE(job->wait_for_out("rank 0 got USR1") && job->wait_for_out("rank 1 got USR1"));
  EXPECT_THAT(job->out(), Not(HasSubstr("rank 0 got USR2")));
  EXPECT_THAT(run_ddprun({"signal", "--rank=2", "USR1"}).err,
              HasSubstr("--rank: invalid value '2' (expected 0 to 1)"));
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(ControlTest, AWorkerThatWasKilledOnRequestGetsNoGuessAboutIt) {
  auto job = running_job("train");
  EXPECT_EQ(run_ddprun({"signal", "KILL"}).code, 0);
  EXPECT_EQ(job->wait(), 137);
  EXPECT_THAT(job->err(), HasSubstr("was killed by SIGKILL, which ddprun sent on request"));
  EXPECT_THAT(job->err(), Not(HasSubstr("hint:")));
}

// --- the socket ---

TEST_F(ControlTest, TheSocketIsTheUsersAlone) {
  auto job = running_job("a/b ../c");
  struct stat status {};
  ASSERT_EQ(stat(sockets().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  ASSERT_EQ(socket_files().size(), 1u);
  EXPECT_EQ(socket_files()[0], sockets() + "/a_b____c." + std::to_string(job->pid()));
  ASSERT_EQ(stat(socket_files()[0].c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  EXPECT_THAT(run_ddprun({"status", "a/b ../c"}).out, HasSubstr("job 'a/b ../c'"));
  let_go();
  EXPECT_EQ(job->wait(), 0);
  EXPECT_TRUE(socket_files().empty());
}

TEST_F(ControlTest, AnotherUserIsNotHeard) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  auto job = running_job("train");
  // The user is refused even if the file system allows the access.
  std::filesystem::permissions(directory_.path(), std::filesystem::perms(0755));
  std::filesystem::permissions(runtime(), std::filesystem::perms(0755));
  std::filesystem::permissions(sockets(), std::filesystem::perms(0755));
  std::filesystem::permissions(socket_files()[0], std::filesystem::perms(0666));
  const UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, socket_files()[0].c_str(), sizeof address.sun_path - 1);
  constexpr uid_t kNobody = 65534;
  ASSERT_EQ(seteuid(kNobody), 0);
  const int result = connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
  ASSERT_EQ(seteuid(0), 0);
  ASSERT_EQ(result, 0) << std::strerror(errno);
  char byte = 0;
  pollfd readable{fd.get(), POLLIN, 0};
  ASSERT_EQ(poll(&readable, 1, 10'000), 1);
  EXPECT_EQ(recv(fd.get(), &byte, 1, 0), 0) << "it is closed without a word";
  // A directory that others may enter is not used, either.
  EXPECT_EQ(run_ddprun({"status"}).code, to_int(ExitCode::kNoJob));
  std::filesystem::permissions(sockets(), std::filesystem::perms(0700));
  EXPECT_EQ(run_ddprun({"status"}).code, 0);
  let_go();
  EXPECT_EQ(job->wait(), 0);
}

TEST_F(ControlTest, AKilledAgentLeavesNoSocket) {
  auto job = running_job("train");
  kill(tree_of(*job).agent, SIGKILL);
  EXPECT_EQ(job->wait(), to_int(ExitCode::kInternal));
  EXPECT_TRUE(socket_files().empty());
  auto second = running_job("train");
  const Tree tree = tree_of(*second);
  kill(tree.guardian, SIGKILL);
  EXPECT_TRUE(eventually([&] { return socket_files().empty(); })) << "the keeper is left";
}

TEST_F(ControlTest, WhatAllGuardsHaveLeftIsRemovedByTheNextListing) {
  auto job = running_job("train");
  const Tree tree = tree_of(*job);
  // Each is stopped first: one that sees the end of another would clear up.
  for (const int signal : {SIGSTOP, SIGKILL}) {
    for (const pid_t pid : {tree.guardian, tree.keeper, tree.agent}) kill(pid, signal);
  }
  job->wait();
  ASSERT_TRUE(eventually([&] { return left_behind().empty(); }));
  ASSERT_EQ(socket_files().size(), 1u);
  EXPECT_EQ(run_ddprun({"status"}).code, to_int(ExitCode::kNoJob));
  EXPECT_TRUE(socket_files().empty());
  remove_what_an_early_kill_left();
  // The next start removes the control group and reports it. It must not be the start of
  // another test.
  EXPECT_EQ(launch({"true"})->wait(), 0);
}

TEST_F(ControlTest, NonsenseIsAnsweredInOneLineAndSilenceHoldsNobodyUp) {
  auto job = running_job("train");
  EXPECT_THAT(answer_to(connected(), "nonsense\n"), HasSubstr(R"("ok":false)"));
  EXPECT_THAT(answer_to(connected(), "{\"version\":2,\"what\":\"who\"}\n"),
              HasSubstr("speaks version 1"));
  EXPECT_THAT(answer_to(connected(), "{\"version\":1,\"what\":\"signal\",\"signal\":1e9}\n"),
              HasSubstr("not a number from 0 to 64"));
  EXPECT_THAT(answer_to(connected(), std::string(100'000, 'x')),
              HasSubstr("a request is one line of at most"));
  EXPECT_THAT(answer_to(connected(), std::string("\0\xff\n", 3)), HasSubstr(R"("ok":false)"));
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 100; ++i) silent.push_back(connected());
  EXPECT_EQ(run_ddprun({"status"}).code, 0);
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(ControlTest, AJobRunsWhereNoSocketCanBeMade) {
  // A directory of this user in which no directory can be made.
  std::filesystem::remove(runtime());
  std::filesystem::create_directory_symlink("/proc/self", runtime());
  auto job = running_job("train", {"--verbose"});
  const CommandResult none = run_ddprun({"status"});
  EXPECT_EQ(none.code, to_int(ExitCode::kNoJob));
  EXPECT_THAT(job->err(),
              HasSubstr("the commands of ddprun (status, logs, ...) cannot reach this job: make " +
                        sockets() + " for the socket of ddprun's commands: "))
      << "each that asks is told why";
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
  std::filesystem::remove(runtime());
  std::filesystem::create_directory(runtime());
}

TEST_F(ControlTest, AnotherPlaceIsUsedAndFoundWhereTheDirectoryCannotBe) {
  std::ofstream(sockets()) << "a file, where the directory would be";
  auto job = running_job("train");
  EXPECT_EQ(run_ddprun({"status"}).code, 0);
  EXPECT_THAT(job->err(),
              HasSubstr(sockets() + " is not used for the socket of ddprun's commands: "));
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
  std::filesystem::remove_all(runtime());
  std::filesystem::create_directory(runtime());
}

// --- through the service ---

TEST_F(ControlByServiceTest, DoesWhatTheAgentsSocketDoes) {
  start_service();
  auto job = begin_job();
  EXPECT_THAT(ask({"status"}).out, HasSubstr("job 'train'  running  generation 0  1 node"));
  EXPECT_THAT(ask({"status", "train"}).out, HasSubstr("job 'train': running, generation 0"));
  EXPECT_EQ(ask({"status", "train", "--json"}).object()["job"]["id"], "train");
  const CommandResult signalled = ask({"signal", "USR1", "train"});
  EXPECT_EQ(signalled.code, 0) << signalled.err;
  EXPECT_TRUE(job->wait_for_out("got USR1"));
  EXPECT_EQ(ask({"restart", "train"}).code, 0);
  EXPECT_TRUE(job->wait_for_err("generation 1: starting 2 workers")) << job->err();
  const CommandResult unknown = ask({"stop", "other"});
  EXPECT_EQ(unknown.code, to_int(ExitCode::kNoJob));
  EXPECT_THAT(unknown.err, HasSubstr("this service has no job 'other'"));
  const CommandResult stopped = ask({"stop", "train"});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  EXPECT_THAT(stopped.out, HasSubstr("ended with exit code 143"));
  EXPECT_EQ(job->wait(), 143) << job->err();
  EXPECT_THAT(ask({"status", "train"}).out, HasSubstr("job 'train': ended"));
}

TEST_F(ControlByServiceTest, WantsTheProofThatAgentsGive) {
  const Variables key{{"DDPRUN_RDZV_KEY", "0123456789abcdef-right"}};
  const Variables wrong{{"DDPRUN_RDZV_KEY", "0123456789abcdef-wrong"}};
  start_service({}, key);
  auto job = begin_job(key);
  for (const Arguments& command : {Arguments{"status", "train"},
                                   {"logs", "train"},
                                   {"stop", "train"},
                                   {"restart", "train"},
                                   {"signal", "KILL", "train"}}) {
    const CommandResult without = ask(command);
    EXPECT_EQ(without.code, to_int(ExitCode::kRefused)) << without.out << without.err;
    EXPECT_THAT(without.err, HasSubstr("this service requires a key"));
    const CommandResult other = ask(command, wrong);
    EXPECT_EQ(other.code, to_int(ExitCode::kRefused)) << other.out << other.err;
    EXPECT_THAT(other.err, HasSubstr("is not the key that this service has"));
  }
  EXPECT_EQ(ask({"status", "train"}, key).code, 0);
  EXPECT_THAT(ask({"logs", "train"}, key).out, HasSubstr("up 1"));
  EXPECT_EQ(ask({"stop", "train"}, key).code, 0);
  EXPECT_EQ(job->wait(), 143) << job->err();
}

TEST_F(ControlByServiceTest, SaysWhenThereIsNoService) {
  const HeldPort held;
  endpoint_ = held.endpoint();
  const CommandResult missing = ask({"status", "train"});
  EXPECT_EQ(missing.code, to_int(ExitCode::kNoAnswer));
  EXPECT_EQ(lines_of(missing.err).size(), 1u) << missing.err;
}

TEST_F(ControlByServiceTest, AnAgentTellsWhatItKnowsWhereItsServiceIsSilent) {
  start_service();
  auto job = begin_job();
  service_->signal(SIGSTOP);
  const CommandResult status = run_ddprun({"status", "train"});
  EXPECT_EQ(status.code, 0) << status.err;
  EXPECT_THAT(status.out, HasSubstr("as known to this node"));
  EXPECT_THAT(status.out, HasSubstr("rank 1"));
  service_->signal(SIGCONT);
  const CommandResult stopped = run_ddprun({"stop", "train"});
  EXPECT_EQ(stopped.code, 0) << stopped.err;
  job->wait();
}

}  // namespace
}  // namespace ddprun::testing_support
