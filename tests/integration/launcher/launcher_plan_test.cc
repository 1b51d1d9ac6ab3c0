// Tests what ddprun prints about itself without starting anything.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "base/small_file.h"
#include "base/usable_cpus.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/host_has.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

using testing::Not;

TEST_F(LauncherTest, PrintConfigShowsEachValueAndItsSource) {
  std::ofstream(directory_ / "job.json") << R"({"max-restarts": 2, "program": "./train"})";
  auto shown = start({"--config=job.json", "--nproc_per_node", "4", "--print-config"},
                     {{"PET_ROLE", "trainer"}});
  ASSERT_EQ(shown->wait(), 0) << shown->err();
  std::map<std::string, std::pair<std::string, std::string>> rows;
  for (const std::string& line : lines_of(shown->out())) {
    std::istringstream words(line);
    std::string name;
    words >> name >> rows[name].first;
    std::getline(words >> std::ws, rows[name].second);
  }
  using Row = std::pair<std::string, std::string>;
  EXPECT_EQ(rows["nproc-per-node"], (Row{"4", "command line"}));
  EXPECT_EQ(rows["role"], (Row{"trainer", "PET_ROLE"}));
  EXPECT_EQ(rows["max-restarts"], (Row{"2", "job.json"}));
  EXPECT_EQ(rows["nnodes"], (Row{"1", "default"}));
  EXPECT_EQ(rows["standalone"], (Row{"false", "default"}));
  EXPECT_EQ(rows["program"], (Row{"./train", "job.json"}));
}

TEST_F(LauncherTest, PrintConfigNamesAWrongValueAsAStartWould) {
  auto shown = start({"--nnodes=x", "--print-config"});
  EXPECT_EQ(shown->wait(), 2);
  EXPECT_THAT(shown->err(), HasSubstr("--nnodes: invalid value 'x'"));
  EXPECT_EQ(shown->out(), "");
}

// The variables are those of a worker of the same command line.
TEST_F(LauncherTest, ADryRunPrintsTheEnvironmentThatWorkersWouldHaveAndStartsNothing) {
  const Arguments line{"--nproc-per-node=2", "--rdzv-id=j", "--max-restarts=3", "--umask=027"};
  auto dry = start(joined({"--dry-run"}, line, {"sh", "-c", "touch started-$RANK"}));
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "started-0"));
  EXPECT_THAT(dry->out(),
              HasSubstr("job: 'j', 1 node, 2 workers on this one, 3 restarts at most\n"));
  EXPECT_THAT(dry->out(), HasSubstr("/sh -c 'touch started-$RANK'\numask: 027\n"));

  auto job = start_shell(line, "env > env-$RANK");
  ASSERT_EQ(job->wait(), 0) << job->err();
  for (const std::string rank : {"0", "1"}) {
    const std::vector<std::string> real = lines_of(read_file(directory_ / ("env-" + rank)));
    const std::string heading = "worker with local rank " + rank + "\n";
    std::istringstream block(dry->out().substr(dry->out().find(heading) + heading.size()));
    int shown = 0;
    for (std::string row; std::getline(block, row) && !row.empty(); ++shown) {
      ASSERT_TRUE(row.starts_with("  ")) << row;
      row = row.substr(2);
      const std::string name = row.substr(0, row.find('=') + 1);
      const auto found = std::find_if(real.begin(), real.end(), [&](const std::string& variable) {
        return variable.starts_with(name);
      });
      ASSERT_NE(found, real.end()) << name << " is no variable of the worker";
      if (row.find('<') == std::string::npos) {
        EXPECT_EQ(*found, row);
      }
    }
    EXPECT_GT(shown, 15);
    for (const std::string& variable : real) {
      const std::string name = variable.substr(0, variable.find('='));
      const bool is_inherited = std::getenv(name.c_str()) || name == mark_.variable().first;
      if (!name.starts_with("DDPRUN_") || is_inherited) continue;
      EXPECT_THAT(dry->out(), HasSubstr("  " + name + "="));
    }
  }
}

TEST_F(LauncherTest, ADryRunOfManyNodesSaysWhatIsDecidedOnlyWhenTheyMeet) {
  auto dry =
      start({"--dry-run", "--nnodes=3", "--nproc-per-node=2", "--rdzv-endpoint=node0", "true"});
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), HasSubstr("meets: at node0:29400\n"));
  EXPECT_THAT(dry->out(), HasSubstr("node rank: assigned by the service; 0 is shown\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  WORLD_SIZE=6\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  MASTER_ADDR=<address of node rank 0>\n"));
  auto second = start({"--dry-run", "--nnodes=3", "--nproc-per-node=2", "--node-rank=1",
                       "--master-addr=10.0.0.1", "true"});
  ASSERT_EQ(second->wait(), 0) << second->err();
  EXPECT_THAT(second->out(), HasSubstr("  RANK=3\n"));
  EXPECT_THAT(second->out(), HasSubstr("  MASTER_PORT=29500\n"));
  EXPECT_THAT(second->out(), Not(HasSubstr("assigned by the service")));
}

class SlurmStepTest : public LauncherTest {
 protected:
  // Starts ddprun as srun starts a task: standard input is no terminal.
  std::unique_ptr<ChildProcess> start_task(const Arguments& arguments, Variables more) const {
    ChildProcess::Options options = environment(std::move(more));
    options.input = "/dev/null";
    return std::make_unique<ChildProcess>(joined({program("ddprun")}, arguments), options);
  }

  // The variables of a task on the second of two nodes.
  const Variables step_{{"SLURM_JOB_ID", "812"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_NODEID", "1"},
                        {"SLURM_STEP_NODELIST", "node[0-1]"},
                        {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                        {"SLURM_STEP_GPUS", "0-3"},
                        {"CUDA_VISIBLE_DEVICES", "0,1,2,3"}};
  Variables step_and(Variables more) const {
    Variables all = step_;
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  Variables step_of_one_node() const {
    return step_and({{"SLURM_NODEID", "0"},
                     {"SLURM_STEP_NODELIST", "node0"},
                     {"SLURM_STEP_TASKS_PER_NODE", "1"}});
  }
};

TEST_F(SlurmStepTest, InAStepOfSlurmADryRunBeginsWithWhatWasTakenFromSlurm) {
  auto dry = start_task({"--dry-run", "true"}, step_);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(),
              testing::StartsWith("ddprun: Slurm step 812.0: node 1 of 2, 4 workers (GPUs of the "
                                  "step), rendezvous at node0:20812\n"));
  EXPECT_THAT(dry->out(), HasSubstr("job: '812.0', 2 nodes, 4 workers on this one"));
  EXPECT_THAT(dry->out(), HasSubstr("meets: at node0:20812\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  RANK=4\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  WORLD_SIZE=8\n"));
}

TEST_F(SlurmStepTest, ADryRunSaysWhichLifeOfTheJobItIsAndHowNodesAuthenticate) {
  const Variables second = step_and({{"SLURM_RESTART_COUNT", "1"}});
  const std::string nowhere = "--munge-socket=" + directory_ / "nowhere";
  auto dry = start_task({"--dry-run", nowhere, "true"}, second);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), HasSubstr("rendezvous at node0:20812, requeued 1 time\n"));
  EXPECT_THAT(dry->out(), HasSubstr("remark: munge is not used: "));
  EXPECT_THAT(dry->out(), HasSubstr("authentication: none: anyone who reaches the rendezvous"));
  const std::string key = directory_.write("key", "0123456789abcdef\n");
  std::filesystem::permissions(key, std::filesystem::perms::owner_read);
  auto with_key = start_task({"--dry-run", "--rdzv-key-file=" + key, "true"}, second);
  ASSERT_EQ(with_key->wait(), 0) << with_key->err();
  EXPECT_THAT(with_key->out(), HasSubstr("authentication: key\n"));
  auto alone = start_task({"--dry-run", "--nnodes=1", "true"}, second);
  EXPECT_THAT(alone->wait(), 0);
  EXPECT_THAT(alone->out(), Not(HasSubstr("authentication")));
}

TEST_F(SlurmStepTest, WhatIsGivenWinsOverSlurm) {
  auto shown = start_task({"--nproc-per-node=2", "--print-config", "true"},
                          step_and({{"PET_RDZV_ID", "mine"}}));
  ASSERT_EQ(shown->wait(), 0) << shown->err();
  const std::regex own("nproc-per-node +2 +command line\n"), id("rdzv-id +mine +PET_RDZV_ID\n"),
      taken("nnodes +2 +Slurm step 812.0\n");
  for (const std::regex* row : {&own, &id, &taken}) {
    EXPECT_TRUE(std::regex_search(shown->out(), *row)) << shown->out();
  }
}

TEST_F(SlurmStepTest, OnlyWorkersAreTakenFromSlurmIfOptionsSayHowNodesMeet) {
  for (const Arguments& given : std::vector<Arguments>{
           {"--standalone"}, {"--rdzv-endpoint=other:1"}, {"--nnodes=2", "--master-addr=other"}}) {
    auto dry = start_task(joined({"--dry-run"}, given, {"true"}), step_);
    ASSERT_EQ(dry->wait(), 0) << dry->err();
    EXPECT_THAT(dry->out(),
                testing::StartsWith("ddprun: Slurm step 812.0: 4 workers (GPUs of the step)\n"));
    EXPECT_THAT(dry->out(), HasSubstr("4 workers on this one")) << given.front();
    EXPECT_THAT(dry->out(), Not(HasSubstr("node0"))) << given.front();
  }
}

TEST_F(SlurmStepTest, OptionsThatSayNothingLeaveTheNodesToSlurm) {
  for (const char* given : {"--standalone=false", "--rdzv-backend=c10d"}) {
    auto dry = start_task({"--dry-run", given, "true"}, step_);
    ASSERT_EQ(dry->wait(), 0) << dry->err();
    EXPECT_THAT(dry->out(), HasSubstr("node 1 of 2")) << given;
  }
}

TEST_F(SlurmStepTest, WithNoDetectNothingIsTakenFromSlurm) {
  auto dry = start_task({"--dry-run", "--no-detect", "true"}, step_);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), Not(HasSubstr("Slurm step")));
  EXPECT_THAT(dry->out(), HasSubstr("1 node, 1 worker on this one"));
}

TEST_F(SlurmStepTest, AnElasticJobInAStepOfSlurmMeetsWhereTheStepDoes) {
  auto dry = start_task({"--dry-run", "--nnodes=1:2", "true"}, step_);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), HasSubstr("1 to 2 nodes"));
  EXPECT_THAT(dry->out(), HasSubstr("meets: at node0:20812\n"));
  EXPECT_THAT(dry->out(), HasSubstr("node rank: assigned by the service"));
  const Variables alone = step_of_one_node();
  auto first = start_task({"--dry-run", "--nnodes=1:2", "true"}, alone);
  ASSERT_EQ(first->wait(), 0) << first->err();
  EXPECT_THAT(first->out(), HasSubstr("meets: at node0:20812\n"));
  auto one = start_task({"--dry-run", "--nnodes=1", "true"}, step_);
  ASSERT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(one->out(), HasSubstr("meets: none: the job has one node"));
}

TEST_F(SlurmStepTest, ARunBeginsWithWhatWasTakenFromSlurm) {
  const Variables alone = step_of_one_node();
  auto job = start_task({"sh", "-c", "echo $WORLD_SIZE"}, alone);
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), testing::StartsWith("ddprun: Slurm step 812.0: one node, 4 workers (GPUs "
                                              "of the step)\n"));
  auto nested =
      start_shell({"--nproc-per-node=1"}, program("ddprun") + " sh -c 'echo $WORLD_SIZE'", alone);
  ASSERT_EQ(nested->wait(), 0) << nested->err();
  EXPECT_THAT(nested->out(), testing::EndsWith("1\n")) << "a worker is no task of Slurm";
}

TEST_F(SlurmStepTest, CpusThatWorkersMayNotUseAreReported) {
  ChildProcess::Options options = environment(step_and({{"SLURM_CPUS_ON_NODE", "4096"}}));
  options.input = "/dev/null";
  const std::string cpu = std::to_string(usable_cpus().front());
  ChildProcess dry({"taskset", "-c", cpu, program("ddprun"), "--dry-run", "true"}, options);
  ASSERT_EQ(dry.wait(), 0) << dry.err();
  EXPECT_THAT(dry.out(),
              HasSubstr("remark: Slurm step 812.0: workers may use 1 of the 4096 CPUs that "
                        "the job has on this node (all of them: srun --cpu-bind=none)\n"));
}

// srun -N2 --ntasks-per-node=8 --pty bash: the other tasks and nodes have no such command.
TEST_F(SlurmStepTest, ACommandThatIsTypedIntoAShellOfTheStepIsAlone) {
  if (!host_has_pseudo_terminals()) GTEST_SKIP() << kNoPseudoTerminals;
  ChildProcess::Options options =
      environment(step_and({{"SLURM_STEP_TASKS_PER_NODE", "8(x2)"}, {"SLURM_LOCALID", "0"}}));
  options.terminal = {80, 24};
  ChildProcess dry({program("ddprun"), "--dry-run", "true"}, options);
  EXPECT_EQ(dry.wait(), 0);
  EXPECT_THAT(dry.out(), HasSubstr("Slurm step 812.0: one node, 4 workers (GPUs of the step)"));
  EXPECT_THAT(dry.out(), HasSubstr("meets: none: the job has one node"));
}

// srun -N1 --ntasks-per-node=2 ddprun ...
class TwoTasksTest : public SlurmStepTest {
 protected:
  std::unique_ptr<ChildProcess> start_local(int task, const Arguments& arguments) const {
    Variables variables = step_of_one_node();
    variables.emplace_back("SLURM_STEP_TASKS_PER_NODE", "2");
    variables.emplace_back("SLURM_JOB_ID", std::to_string(getpid()));  // unlike another test's
    variables.emplace_back("SLURM_LOCALID", std::to_string(task));
    return start_task(arguments, variables);
  }
  // It has one while it waits for the agent. By then it has blocked the signals.
  static bool has_socket(pid_t pid) {
    for (const auto& entry : entries_of("/proc/" + std::to_string(pid) + "/fd")) {
      std::error_code gone;
      if (std::filesystem::read_symlink(entry, gone).string().starts_with("socket:")) return true;
    }
    return false;
  }
};

TEST_F(TwoTasksTest, Task0IsTheAgentAndTheOtherEndsWithItsExitCode) {
  const Arguments command{"sh", "-c", "echo rank $RANK of $WORLD_SIZE; exit 5"};
  auto other = start_local(1, command);
  auto agent = start_local(0, command);
  EXPECT_EQ(agent->wait(), 5) << agent->err();
  EXPECT_EQ(other->wait(), 5) << other->err();
  EXPECT_THAT(agent->err(), HasSubstr("one node, 2 workers (tasks of this node)\n"));
  EXPECT_THAT(agent->out(), HasSubstr("rank 0 of 2"));
  EXPECT_EQ(other->out() + other->err(), "");
  // The agent ends before the other begins.
  auto early = start_local(0, {"true"});
  EXPECT_TRUE(early->wait_for_err("2 workers (tasks of this node)")) << early->err();
  auto late = start_local(1, {"true"});
  EXPECT_EQ(early->wait(), 0) << early->err();
  EXPECT_EQ(late->wait(), 0) << late->err();
}

TEST_F(TwoTasksTest, ADryRunSaysWhichTaskWaits) {
  auto other = start_local(1, {"--dry-run", "true"});
  EXPECT_EQ(other->wait(), 0) << other->err();
  EXPECT_THAT(other->out(),
              testing::MatchesRegex("ddprun: Slurm step .*: waits for local task 0\n"));
}

TEST_F(TwoTasksTest, AnAgentThatCannotStartEndsAllTasks) {
  auto agent = start_local(0, {"./no-such-program"});
  auto other = start_local(1, {"./no-such-program"});
  EXPECT_EQ(agent->wait(), 2);
  EXPECT_EQ(other->wait(), 2);
  EXPECT_THAT(agent->err(), HasSubstr("no such file"));
  EXPECT_EQ(other->err(), "") << "one task says it";
}

// Task 0 may come late, because its container is fetched.
TEST_F(TwoTasksTest, TheOtherWaitsForTheAgentAsLongAsNodesMayTakeToJoin) {
  auto other = start_local(1, {"--rdzv-conf=join_timeout=1", "true"});
  EXPECT_EQ(other->wait(), 64) << other->err();
  EXPECT_THAT(other->err(), HasSubstr("the ddprun of local task 0: it did not come within 1.0 s"));
}

TEST_F(TwoTasksTest, TheOtherDoesNotOutliveAKilledAgent) {
  auto agent = start_local(0, {"sh", "-c", "echo here; exec sleep 100"});
  ASSERT_TRUE(agent->wait_for_out("[rank 1] here")) << agent->err();
  auto other = start_local(1, {"true"});
  ASSERT_TRUE(eventually([&] { return has_socket(other->pid()); })) << "it waits for the agent";
  other->signal(SIGTERM);  // the scheduler signals all tasks; task 0 decides
  EXPECT_FALSE(other->wait(std::chrono::milliseconds(200)));
  agent->signal(SIGKILL);
  EXPECT_EQ(other->wait(), 70) << other->err();
  EXPECT_THAT(other->err(), HasSubstr("the ddprun of local task 0: it was killed"));
}

// A batch script is not on each node of its job.
class BatchScriptTest : public SlurmStepTest {
 protected:
  const Variables script_{{"SLURM_JOB_ID", "812"},           {"SLURM_JOB_NODELIST", "node[0-1]"},
                          {"SLURMD_NODENAME", "node0"},      {"SLURM_NTASKS", "8"},
                          {"SLURM_TASKS_PER_NODE", "4(x2)"}, {"SLURM_EXPORT_ENV", "NONE"}};
};

TEST_F(BatchScriptTest, TellsTheCommandThatStartsDdprunOnEachNode) {
  auto dry = start_task({"--dry-run", "--max-restarts=2", "./train", "a b"}, script_);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  const std::regex line(
      "ddprun: Slurm job 812: 2 nodes: srun --nodes=2 --ntasks=2 --ntasks-per-node=1 "
      "--cpu-bind=none --export=ALL --kill-on-bad-exit=0 --wait=0 --job-name=ddprun-[0-9]+ "
      "env 'DDPRUN_TASKS_PER_NODE=4\\(x2\\)' /[^ ]*/ddprun --max-restarts=2 \\./train 'a b'\n");
  EXPECT_TRUE(std::regex_match(dry->out(), line)) << dry->out();
}

// Its workers may start steps of their own, which have other tasks.
TEST_F(BatchScriptTest, ANodeTakesTheTasksOfTheJobAndItsWorkersDoNot) {
  const Variables step{{"SLURM_JOB_ID", "812"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_NODEID", "0"},
                       {"SLURM_STEP_NODELIST", "node0"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1"},
                       {"DDPRUN_TASKS_PER_NODE", "3"}};
  auto job =
      start_task({"sh", "-c", "echo \"${DDPRUN_TASKS_PER_NODE-none} of $WORLD_SIZE\""}, step);
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("one node, 3 workers (tasks of the job)\n"));
  EXPECT_THAT(job->out(), HasSubstr("none of 3"));
}

TEST_F(BatchScriptTest, OfAHeterogeneousJobCountsTheGpusOfThisNodeAlone) {
  Variables script = script_;
  script.insert(script.end(), {{"SLURM_HET_SIZE", "2"}, {"SLURM_GPUS_ON_NODE", "3"}});
  for (const char* given : {"--standalone", "--nnodes=1"}) {
    auto dry = start_task({"--dry-run", given, "true"}, script);
    ASSERT_EQ(dry->wait(), 0) << dry->err();
    EXPECT_THAT(dry->out(), HasSubstr("Slurm job 812: 3 workers (GPUs of the job)")) << given;
  }
  for (const char* given : {"--max-restarts=1", "--nnodes=2"}) {
    auto refused = start_task({"--dry-run", given, "true"}, script);
    EXPECT_EQ(refused->wait(), 2) << refused->out();
    EXPECT_THAT(refused->err(), HasSubstr("Slurm job 812: it has 2 components: start ddprun on"));
  }
}

TEST_F(BatchScriptTest, RunsOnThisNodeAloneIfTheUserSaysHowNodesMeet) {
  for (const char* given : {"--standalone", "--nnodes=1", "--no-detect"}) {
    auto dry = start_task({"--dry-run", given, "true"}, script_);
    ASSERT_EQ(dry->wait(), 0) << dry->err();
    EXPECT_THAT(dry->out(), HasSubstr("meets: none: the job has one node")) << given;
    EXPECT_THAT(dry->out(), Not(HasSubstr("srun"))) << given;
  }
}

TEST_F(BatchScriptTest, AWorkerOfItIsNotTheScript) {
  auto job = start_task({"--nnodes=1", "--nproc-per-node=1", "sh", "-c",
                         program("ddprun") + " sh -c 'echo world of $WORLD_SIZE'"},
                        script_);
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("world of 1"));
}

TEST_F(BatchScriptTest, SaysSoWhereThereIsNoSrun) {
  Variables variables = script_;
  variables.emplace_back("PATH", "/nowhere");
  auto job = start_task({"true"}, variables);
  EXPECT_EQ(job->wait(), 64);
  EXPECT_THAT(job->err(),
              HasSubstr("ddprun: error: Slurm job 812: start srun (for this node alone, add "
                        "--nnodes=1): No such file or directory"));
}

class OtherBatchScriptTest : public SlurmStepTest {
 protected:
  void write_command(const std::string& name, const std::string& script) const {
    const std::string path = directory_.write(name, "#!/bin/sh\n" + script);
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  }
  Variables with_commands(Variables variables) const {
    variables.emplace_back("PATH", directory_.path() + ":" + std::getenv("PATH"));
    return variables;
  }
};

// blaunch of the test runs the line by a shell for each host, and passes SIGTERM on.
TEST_F(OtherBatchScriptTest, OfLsfStartsDdprunOnEachHost) {
  write_command("blaunch",
                "[ \"$1 $#\" = '-z 3' ] || exit 9\nfor host in $2; do\n  n=$((n + 1))\n"
                "  LSF_PM_TASKID=$n sh -c \"exec $3\" &\n  tasks=\"$tasks $!\"\ndone\n"
                "trap 'kill $tasks' TERM\nuntil wait; do :; done\n");
  const Variables script = with_commands(
      {{"LSB_JOBID", std::to_string(getpid())}, {"LSB_MCPU_HOSTS", "127.0.0.1 2 127.0.0.2 2"}});
  auto dry = start_task({"--dry-run", "./train", "a b"}, script);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_TRUE(std::regex_match(
      dry->out(), std::regex("ddprun: LSF job [0-9]+: 2 nodes: blaunch -z '127.0.0.1 127.0.0.2' "
                             "'env '.*LSB_MCPU_HOSTS=127.0.0.1 1 127.0.0.2 1.* /[^ ]*/ddprun "
                             "\\./train .*a b.*\n")))
      << dry->out();
  auto job = start_task({"sh", "-c",
                         "trap 'echo rank $RANK was told; exit 0' TERM\n"
                         "echo \"rank $RANK of $WORLD_SIZE: $0\"; while :; do sleep 0.05; done",
                         "a b"},
                        script);
  ASSERT_TRUE(job->wait_for_out("rank 0 of 2: a b")) << job->err();
  ASSERT_TRUE(job->wait_for_out("rank 1 of 2: a b")) << job->err();
  job->signal(SIGTERM);
  EXPECT_TRUE(job->wait_for_out("rank 0 was told")) << job->err();
  EXPECT_TRUE(job->wait_for_out("rank 1 was told")) << job->err();
  job->wait();
}

TEST_F(OtherBatchScriptTest, OfPbsProIsRefusedOnSeveralNodes) {
  const std::string file = directory_.write("nodes", "n1\nn1\nn2\n");
  const Variables script{{"PBS_JOBID", "12.server"}, {"PBS_NODEFILE", file}};
  for (const char* given : {"--max-restarts=1", "--nnodes=2"}) {
    auto job = start_task({"--dry-run", given, "true"}, script);
    EXPECT_EQ(job->wait(), 2) << job->out();
    EXPECT_THAT(job->err(), HasSubstr("PBS job 12.server: it has 2 nodes: start ddprun on each"));
  }
  auto alone = start_task({"--dry-run", "--nnodes=1", "true"}, script);
  EXPECT_EQ(alone->wait(), 0) << alone->err();
  auto unknown =
      start_task({"--dry-run", "true"}, {{"PBS_JOBID", "12.server"}, {"PBS_NODEFILE", "/nowhere"}});
  EXPECT_EQ(unknown->wait(), 0);
  EXPECT_THAT(unknown->err() + unknown->out(), HasSubstr("PBS job 12.server: trains alone: give "));
}

TEST_F(OtherBatchScriptTest, OfFluxAsksForTheNumberOfNodes) {
  const Variables script = with_commands({{"FLUX_ENCLOSING_ID", "f3ETxsR9H"}});
  write_command("flux", "[ \"$*\" = 'getattr size' ] && echo 4\n");
  auto four = start_task({"--dry-run", "true"}, script);
  EXPECT_EQ(four->wait(), 2) << four->out();
  EXPECT_THAT(four->err(), HasSubstr("Flux job f3ETxsR9H: it has 4 nodes: start ddprun on each"));
  write_command("flux", "echo 1\n");
  auto one = start_task({"--dry-run", "true"}, script);
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(one->out(), HasSubstr("Flux job f3ETxsR9H: one node, 1 worker"));
}

// mpiexec -ppn 1 does not say where its first process is.
TEST_F(SlurmStepTest, ASchedulerThatNamesNoHostNeedsOnlyAnEndpoint) {
  const Variables hydra{{"MPI_LOCALNRANKS", "1"}, {"PMI_SIZE", "2"}, {"PMI_RANK", "1"}};
  auto dry = start_task({"--dry-run", "--rdzv-endpoint=node0:20812", "true"}, hydra);
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), testing::StartsWith("ddprun: Hydra job: node 1 of 2, 1 worker\n"));
  EXPECT_THAT(dry->out(), HasSubstr("meets: at node0:20812\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  RANK=1\n"));
  auto without = start_task({"--dry-run", "true"}, hydra);
  EXPECT_EQ(without->wait(), 2);
  EXPECT_THAT(without->err(), HasSubstr("Hydra job: it has 2 nodes, but does not say where they "
                                        "meet: give --rdzv-endpoint=HOST:PORT"));
}

// The device plugin says "void", or names a directory. The driver of the test has two GPUs.
TEST_F(LauncherTest, ThePodsGpusAreCountedIfNoVariableListsThem) {
  const auto dry_run_in = [&](const Arguments& options, const char* driver, const char* list) {
    auto dry =
        start(joined({"--dry-run"}, options, {"true"}), {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                                                         {"NVIDIA_VISIBLE_DEVICES", list},
                                                         {"LD_LIBRARY_PATH", FAKE_DRIVER_DIR},
                                                         {"FAKE_DRIVER", driver}});
    EXPECT_EQ(dry->wait(), 0) << dry->err();
    return dry->out();
  };
  const std::string two = "ddprun: Kubernetes pod: one node, 2 workers (GPUs of the pod)\n";
  EXPECT_THAT(dry_run_in({}, "well", "void"), testing::StartsWith(two));
  EXPECT_THAT(dry_run_in({}, "well", "/var/run/nvidia-container-devices"),
              testing::StartsWith(two));
  EXPECT_THAT(dry_run_in({}, "well", "all"), Not(HasSubstr("Kubernetes"))) << "of an image";
  EXPECT_THAT(dry_run_in({}, "mismatch", "void"), Not(HasSubstr("Kubernetes")));
  EXPECT_THAT(dry_run_in({"--nproc-per-node=3"}, "well", "void"), HasSubstr("3 workers"));
}

// A container with `tty: true` has a terminal, into which nothing was typed. A person's shell gives
// each command a process group of its own, as `setsid` does here.
TEST_F(LauncherTest, TheCommandOfAPodWithATerminalWasNotTyped) {
  if (!host_has_pseudo_terminals()) GTEST_SKIP() << kNoPseudoTerminals;
  const Arguments container{"unshare", "--pid", "--fork", "--mount-proc"};
  ChildProcess probe(joined(container, {"true"}), environment());
  if (probe.wait() != 0) GTEST_SKIP() << "no PID namespace can be made here";
  ChildProcess::Options options = environment({{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                                               {"LWS_LEADER_ADDRESS", "train-0.train"},
                                               {"LWS_GROUP_SIZE", "3"},
                                               {"LWS_WORKER_INDEX", "1"}});
  options.terminal = {80, 24};
  const auto out_of = [&](const Arguments& command) {
    ChildProcess dry(joined(container, command), options);
    EXPECT_EQ(dry.wait(), 0) << dry.out();
    return dry.out();
  };
  const std::string command = program("ddprun") + " --dry-run true";
  EXPECT_THAT(out_of({program("ddprun"), "--dry-run", "true"}), HasSubstr("node 1 of 3"));
  EXPECT_THAT(out_of({"sh", "-c", command + "; exit $?"}), HasSubstr("node 1 of 3"))
      << "an entry script";
  EXPECT_THAT(out_of({"sh", "-c", "setsid --wait " + command}), HasSubstr("one node, 1 worker"));
}

TEST_F(LauncherTest, ADryRunFindsWhatAStartWouldNotFind) {
  auto dry = start({"--dry-run", "./no-such-program"});
  EXPECT_EQ(dry->wait(), 2);
  EXPECT_THAT(dry->err(), HasSubstr("./no-such-program: no such file"));
}

TEST_F(LauncherTest, AFirstWordThatNamesACommandIsOneAndAPathIsNot) {
  auto command = start({"completion"});
  EXPECT_EQ(command->wait(), 2);
  EXPECT_THAT(command->err(), HasSubstr("the shell is missing (expected bash or zsh)"));
  std::ofstream(directory_ / "completion") << "#!/bin/sh\necho ran\n";
  std::filesystem::permissions(directory_ / "completion", std::filesystem::perms::owner_all);
  auto path = start({"./completion"});
  EXPECT_EQ(path->wait(), 0) << path->err();
  EXPECT_EQ(path->out(), "ran\n");
  auto behind_options = start({"--standalone", "--", "./completion"});
  EXPECT_EQ(behind_options->wait(), 0);
  EXPECT_EQ(behind_options->out(), "ran\n");
}

}  // namespace
}  // namespace ddprun::testing_support
