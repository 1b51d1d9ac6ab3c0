// The detectors of Slurm: a step, a batch script, the shell of salloc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Recorded with Slurm 22.05 in the testbed (`env`): a batch script of two nodes with --gres=gpu:2,
// the second task of its `srun --ntasks-per-node=1`, and the shell of salloc. Names of nodes and
// numbers of jobs were replaced; names of users, clusters, partitions and ports were left out.
const Variables kStep{{"CUDA_VISIBLE_DEVICES", "0,1"},
                      {"SLURMD_NODENAME", "node1"},
                      {"SLURM_CPUS_ON_NODE", "1"},
                      {"SLURM_DISTRIBUTION", "cyclic"},
                      {"SLURM_GPUS_ON_NODE", "2"},
                      {"SLURM_GTIDS", "1"},
                      {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"},
                      {"SLURM_JOB_GPUS", "0,1"},
                      {"SLURM_JOB_ID", "812"},
                      {"SLURM_JOB_NODELIST", "node[0-1]"},
                      {"SLURM_JOB_NUM_NODES", "2"},
                      {"SLURM_LAUNCH_NODE_IPADDR", "10.79.3.10"},
                      {"SLURM_LOCALID", "0"},
                      {"SLURM_NNODES", "2"},
                      {"SLURM_NODEID", "1"},
                      {"SLURM_NODELIST", "node[0-1]"},
                      {"SLURM_NPROCS", "2"},
                      {"SLURM_NTASKS", "2"},
                      {"SLURM_NTASKS_PER_NODE", "1"},
                      {"SLURM_PROCID", "1"},
                      {"SLURM_STEPID", "0"},
                      {"SLURM_STEP_GPUS", "0,1"},
                      {"SLURM_STEP_ID", "0"},
                      {"SLURM_STEP_NODELIST", "node[0-1]"},
                      {"SLURM_STEP_NUM_NODES", "2"},
                      {"SLURM_STEP_NUM_TASKS", "2"},
                      {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"},
                      {"SLURM_TASKS_PER_NODE", "1(x2)"},
                      {"SLURM_TASK_PID", "36"}};
const Variables kBatchScript{{"CUDA_VISIBLE_DEVICES", "0,1"},
                             {"SLURMD_NODENAME", "node0"},
                             {"SLURM_CPUS_ON_NODE", "1"},
                             {"SLURM_GPUS_ON_NODE", "2"},
                             {"SLURM_GTIDS", "0"},
                             {"SLURM_JOB_CPUS_PER_NODE", "1(x2)"},
                             {"SLURM_JOB_GPUS", "0,1"},
                             {"SLURM_JOB_ID", "812"},
                             {"SLURM_JOB_NODELIST", "node[0-1]"},
                             {"SLURM_JOB_NUM_NODES", "2"},
                             {"SLURM_LOCALID", "0"},
                             {"SLURM_NNODES", "2"},
                             {"SLURM_NODEID", "0"},
                             {"SLURM_NODELIST", "node[0-1]"},
                             {"SLURM_NPROCS", "2"},
                             {"SLURM_NTASKS", "2"},
                             {"SLURM_NTASKS_PER_NODE", "1"},
                             {"SLURM_PROCID", "0"},
                             {"SLURM_TASKS_PER_NODE", "1(x2)"},
                             {"SLURM_TASK_PID", "35"}};
const Variables kSallocShell{{"SLURM_JOB_CPUS_PER_NODE", "1(x2)"},
                             {"SLURM_JOB_ID", "813"},
                             {"SLURM_JOB_NODELIST", "node[0-1]"},
                             {"SLURM_JOB_NUM_NODES", "2"},
                             {"SLURM_NNODES", "2"},
                             {"SLURM_NODELIST", "node[0-1]"},
                             {"SLURM_TASKS_PER_NODE", "1(x2)"}};

TEST(DetectSlurm, ReadsAStepOfSlurm) {
  const ClusterPlan plan = plan_of(kStep);
  EXPECT_EQ(plan.name, "Slurm step 812.0");
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.endpoint.host, "node0");
  EXPECT_EQ(plan.job_id, "812.0");
  EXPECT_EQ(plan.workers, 2);
  EXPECT_EQ(plan.tasks, 1);
  EXPECT_EQ(plan.attempt, 0);
  EXPECT_EQ(plan.auth, "munge");
}

TEST(DetectSlurm, CountsTheRequeuesOfTheJob) {
  for (const Variables& first : {kStep, kBatchScript}) {
    EXPECT_EQ(plan_of(with(first, "SLURM_RESTART_COUNT", "2")).attempt, 2);
    EXPECT_EQ(plan_of(with(first, "SLURM_RESTART_COUNT", "many")).attempt, 0);
  }
}

TEST(DetectSlurm, AllNodesOfAStepAgreeAndOtherStepsHaveAnotherPort) {
  const HostPort endpoint = plan_of(kStep).endpoint;
  const Variables first = with(with(kStep, "SLURM_NODEID", "0"), "SLURMD_NODENAME", "node0");
  EXPECT_EQ(plan_of(first).endpoint, endpoint);
  EXPECT_EQ(plan_of(first).next_ports, plan_of(kStep).next_ports);
  EXPECT_EQ(plan_of(first).next_ports.size(), 7u);
  EXPECT_NE(plan_of(with(kStep, "SLURM_STEP_ID", "1")).endpoint.port, endpoint.port);
  for (const char* job : {"813", "1437", "10811"}) {
    EXPECT_NE(plan_of(with(kStep, "SLURM_JOB_ID", job)).endpoint.port, endpoint.port) << job;
  }
  for (const char* job : {"1", "65535", "4294967295", "18446744073709551615"}) {
    const std::uint16_t port = plan_of(with(kStep, "SLURM_JOB_ID", job)).endpoint.port;
    EXPECT_GE(port, 20000) << job;
    EXPECT_LT(port, 30000) << job;
  }
}

// srun -N1 in a job of two nodes.
TEST(DetectSlurm, TheStepCountsNotTheJob) {
  const Variables one_node{{"SLURM_JOB_ID", "812"},
                           {"SLURM_JOB_NODELIST", "node[0-1]"},
                           {"SLURM_NNODES", "2"},
                           {"SLURM_NODEID", "0"},
                           {"SLURM_STEP_ID", "3"},
                           {"SLURM_STEP_NODELIST", "node1"},
                           {"SLURM_STEP_TASKS_PER_NODE", "1"},
                           {"SLURM_GPUS_ON_NODE", "2"}};
  const ClusterPlan plan = plan_of(one_node);
  EXPECT_EQ(plan.nodes, 1);
  EXPECT_EQ(plan.workers, std::nullopt) << "srun --gres=none: the GPUs are those of the job";
  EXPECT_THAT(option_texts(plan, Taken::kOneNode), IsEmpty());
  EXPECT_EQ(to_sentence(plan, 1, Taken::kOneNode), "Slurm step 812.3: one node, 1 worker");
}

TEST(DetectSlurm, ABatchScriptStartsDdprunOnEachNodeOfItsJob) {
  const ClusterPlan plan = plan_of(kBatchScript);
  EXPECT_EQ(plan.name, "Slurm job 812");
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.workers, 2) << "if --nnodes=1 is given";
  EXPECT_THAT(plan.starter,
              ElementsAre("srun", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1",
                          "--cpu-bind=none", "--export=ALL", "--kill-on-bad-exit=0", "--wait=0"));
  EXPECT_THAT(option_texts(plan, Taken::kStarter), IsEmpty());
  EXPECT_EQ(to_sentence(plan, 0, Taken::kStarter), "Slurm job 812: 2 nodes");
}

TEST(DetectSlurm, ABatchScriptOfOneNodeStartsTheWorkersItself) {
  Variables script = with(kBatchScript, "SLURM_JOB_NODELIST", "node0");
  const ClusterPlan plan = plan_of(script);
  EXPECT_THAT(plan.starter, IsEmpty());
  EXPECT_EQ(to_sentence(plan, 2, Taken::kOneNode),
            "Slurm job 812: one node, 2 workers (GPUs of the job)");
  script.erase("SLURM_GPUS_ON_NODE");
  EXPECT_EQ(plan_of(script).workers, std::nullopt);
  script["SLURM_TASKS_PER_NODE"] = "4";
  EXPECT_EQ(plan_of(script).workers, 4);
  EXPECT_EQ(plan_of(script).workers_are, "tasks of the job");
}

// salloc runs its shell on the node where it was typed.
TEST(DetectSlurm, AShellOfSallocStartsDdprunOnTheNodesOfItsJobEvenOnOne) {
  EXPECT_EQ(plan_of(kSallocShell).starter.front(), "srun");
  const ClusterPlan one = plan_of(with(kSallocShell, "SLURM_JOB_NODELIST", "node1"));
  EXPECT_THAT(one.starter, Contains("--nodes=1"));
  // use_interactive_step: srun starts the shell of salloc, in a step with a special number.
  const auto typed =
      detect(with(with(with(kStep, "SLURM_STEP_ID", "4294967290"), "SLURMD_NODENAME", "node0"),
                  "SLURM_NODEID", "0"),
             /*is_typed=*/true);
  ASSERT_TRUE(typed && *typed);
  EXPECT_EQ((*typed)->nodes, 2);
  EXPECT_EQ((*typed)->starter.front(), "srun");
}

// Slurm sets SLURM_TASKS_PER_NODE also if nobody asked for tasks, but then not SLURM_NTASKS.
TEST(DetectSlurm, TasksThatWereAskedForBecomeWorkersOfEachNode) {
  Variables script = without(without(kBatchScript, "SLURM_GPUS_ON_NODE"), "SLURM_JOB_GPUS");
  script["SLURM_TASKS_PER_NODE"] = "8(x2)";
  EXPECT_EQ(plan_of(script).workers, 8) << "if --nnodes=1 is given";
  EXPECT_THAT(plan_of(script).starter_variables, ElementsAre("DDPRUN_TASKS_PER_NODE=8(x2)"));
  EXPECT_THAT(plan_of(with(script, "SLURM_TASKS_PER_NODE", "8,4")).starter_variables,
              ElementsAre("DDPRUN_TASKS_PER_NODE=8,4"));
  EXPECT_THAT(plan_of(with(script, "SLURM_TASKS_PER_NODE", "8(x")).starter_variables, IsEmpty());
  EXPECT_THAT(plan_of(with(script, "SLURM_TASKS_PER_NODE", "1(x2)")).starter_variables, IsEmpty());
  EXPECT_THAT(plan_of(without(script, "SLURM_NTASKS")).starter_variables, IsEmpty());
}

// salloc -N2 --ntasks-per-node=8 --gres=gpu:2 on a login node: only the step knows its GPUs.
TEST(DetectSlurm, TheGpusOfTheStepComeBeforeTheTasksOfTheJob) {
  Variables shell = with(kSallocShell, "SLURM_TASKS_PER_NODE", "8,4");
  shell["SLURM_NTASKS"] = "12";
  EXPECT_THAT(plan_of(shell).starter_variables, ElementsAre("DDPRUN_TASKS_PER_NODE=8,4"));
  const Variables step = with(kStep, kTasksVariable, "8,4");
  EXPECT_EQ(plan_of(step).workers, 2);
  EXPECT_EQ(plan_of(step).workers_are, "GPUs of the step");
  const Variables without_gpus = without(step, "SLURM_STEP_GPUS");
  EXPECT_EQ(plan_of(without_gpus).workers, 4) << "the tasks of node 1";
  EXPECT_EQ(plan_of(without_gpus).workers_are, "tasks of the job");
  EXPECT_EQ(plan_of(with(without_gpus, kTasksVariable, "8")).workers, std::nullopt)
      << "of other nodes";
  // With several tasks in the step, those count.
  EXPECT_EQ(plan_of(with(without_gpus, "SLURM_STEP_TASKS_PER_NODE", "5(x2)")).workers, 5);
}

// #SBATCH --ntasks-per-node=8 --gpus-per-task=1: srun would take one GPU for its one task.
TEST(DetectSlurm, SrunDoesNotTakeWhatTheScriptAskedForEachTask) {
  Variables script = with(kBatchScript, "SLURM_GPUS_PER_TASK", "1");
  script["SRUN_CPUS_PER_TASK"] = "2";
  const std::vector<std::string> starter = plan_of(script).starter;
  ASSERT_GT(starter.size(), 6);
  EXPECT_THAT(std::vector(starter.begin(), starter.begin() + 6),
              ElementsAre("env", "-u", "SRUN_CPUS_PER_TASK", "-u", "SLURM_GPUS_PER_TASK", "srun"));
}

// Recorded with Slurm 22.05: a batch script (`#SBATCH hetjob`), and salloc -N1 : -N1. A step of all
// components has the variables of any other step.
TEST(DetectSlurm, AHeterogeneousJobIsStartedByHand) {
  const Variables script{{"SLURM_HET_SIZE", "2"},
                         {"SLURM_JOB_ID", "9"},
                         {"SLURM_JOB_ID_HET_GROUP_0", "9"},
                         {"SLURM_JOB_ID_HET_GROUP_1", "10"},
                         {"SLURM_JOB_NODELIST", "node0"},
                         {"SLURM_JOB_NODELIST_HET_GROUP_0", "node0"},
                         {"SLURM_JOB_NODELIST_HET_GROUP_1", "node[1-2]"},
                         {"SLURM_NNODES", "1"}};
  constexpr const char* kRefusal =
      "it has 2 components: start ddprun on the nodes of all, `srun --het-group=0-1 "
      "--ntasks-per-node=1 --kill-on-bad-exit=0 --wait=0 ddprun ...` (for this node alone, add "
      "--nnodes=1)";
  EXPECT_EQ(plan_of(script).no_starter, kRefusal);
  EXPECT_THAT(plan_of(script).starter, IsEmpty());
  const auto typed = detect(without(script, "SLURM_JOB_NODELIST"), /*is_typed=*/true);
  ASSERT_TRUE(typed && *typed) << "into the shell of salloc";
  EXPECT_EQ((*typed)->no_starter, kRefusal);
  Variables on_node = with(script, "SLURMD_NODENAME", "node0");
  on_node["SLURM_GPUS_ON_NODE"] = "4";
  EXPECT_EQ(plan_of(on_node).workers, 4) << "of this node alone";
  on_node["SLURMD_NODENAME"] = "node1";
  EXPECT_FALSE(*detect(on_node));
  EXPECT_EQ(plan_of(with(kStep, "SLURM_HET_SIZE", "2")).nodes, 2);
}

TEST(DetectSlurm, AWorkerOfTorchrunInABatchScriptIsNotTheScript) {
  const Variables worker = with(kBatchScript, "TORCHELASTIC_RUN_ID", "none");
  EXPECT_FALSE(*detect(worker));
  EXPECT_TRUE(*detect(with(worker, kStepVariable, "811.0"))) << "a worker of job 811 submitted it";
}

// A shell that was led to another node has the variables of the batch script.
TEST(DetectSlurm, VariablesOfABatchScriptOnAnotherNodeAreNone) {
  EXPECT_FALSE(*detect(with(kBatchScript, "SLURMD_NODENAME", "node1")));
  EXPECT_FALSE(*detect(without(kBatchScript, "SLURM_JOB_NODELIST")));
  EXPECT_FALSE(*detect({}));
}

// What the profiles of clusters set for every shell.
TEST(DetectSlurm, AShellOnALoginNodeIsInNoJob) {
  const Variables shell{{"LSF_ENVDIR", "/opt/lsf/conf"},   {"SBATCH_ACCOUNT", "physics"},
                        {"SGE_ROOT", "/opt/sge"},          {"SLURM_CLUSTERS", "main"},
                        {"SLURM_CONF", "/etc/slurm.conf"}, {"SQUEUE_FORMAT", "%i %j"},
                        {"SSH_TTY", "/dev/pts/3"}};
  for (const bool is_typed : {false, true}) EXPECT_FALSE(*detect(shell, is_typed));
}

// A container may get some variables only.
TEST(DetectSlurm, AStepWithoutAJobIsNone) {
  EXPECT_FALSE(*detect(without(kStep, "SLURM_JOB_ID")));
  EXPECT_FALSE(*detect({{"SLURM_STEP_ID", "0"}, {"SLURM_JOB_NODELIST", "node[0-1]"}}));
}

// sbatch in a shell of srun --pty passes the variables of that step on.
TEST(DetectSlurm, ABatchScriptThatWasSubmittedInAStepIsNoTask) {
  Variables script = kBatchScript;
  script["SLURMD_NODENAME"] = "node5";
  for (const char* old : {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}) {
    script[old] = kStep.at(old);
  }
  script["SLURM_JOB_NODELIST"] = "node[5-6]";
  EXPECT_EQ(plan_of(script).name, "Slurm job 812");
}

// salloc in such a shell passes them on to its own, on a node that is not of the new job.
TEST(DetectSlurm, AShellOfSallocInAStepIsNoTask) {
  Variables shell = kStep;
  shell["SLURM_JOB_ID"] = "813";
  shell["SLURM_JOB_NODELIST"] = "node[5-6]";
  EXPECT_EQ(plan_of(shell).name, "Slurm job 813");
  EXPECT_EQ(plan_of(shell).starter.front(), "srun");
  EXPECT_EQ(plan_of(without(shell, "SLURMD_NODENAME")).name, "Slurm job 813");
}

// The title of slurmstepd tells them apart where the new job has the same node.
TEST(DetectSlurm, VariablesOfAnotherStepAreInherited) {
  const auto inherited = [](const Variables& variables, const char* manager) {
    return inherited_variables(
        [&](std::string_view name) -> std::optional<std::string> {
          const auto found = variables.find(name);
          return found == variables.end() ? std::nullopt : std::optional(found->second);
        },
        manager);
  };
  EXPECT_THAT(inherited(kStep, "slurmstepd: [812.batch]"), ElementsAre("SLURM_STEP_ID"));
  EXPECT_THAT(inherited(kStep, "slurmstepd: [812.1]"), ElementsAre("SLURM_STEP_ID"));
  EXPECT_THAT(inherited(kStep, "slurmstepd: [811.0]"),
              ElementsAre("SLURM_STEP_ID", "SLURMD_NODENAME"))
      << "the shell of salloc in step 811.0";
  for (const char* own :
       {"slurmstepd: [812.0]", "slurmstepd: [812.interactive]", "slurmstepd: [812.extern]",
        "slurmstepd", "slurmstepd: [812", "slurmstepd: ]812.1[", "slurmstepd: [x.1]", "]", ""}) {
    EXPECT_THAT(inherited(kStep, own), IsEmpty()) << own;
  }
  EXPECT_THAT(inherited(with(kStep, "SLURM_HET_SIZE", "2"), "slurmstepd: [813.0]"), IsEmpty());
}

TEST(DetectSlurm, AWorkerIsNoTaskButAJobThatItSubmitsIs) {
  EXPECT_FALSE(*detect(with(kStep, kStepVariable, "812.0")));
  EXPECT_TRUE(*detect(with(with(kStep, kStepVariable, "811.0"), "TORCHELASTIC_RUN_ID", "811.0")));
}

TEST(DetectSlurm, AWorkerOfABatchScriptIsNotTheBatchScript) {
  EXPECT_FALSE(*detect(with(kBatchScript, kStepVariable, "812")));
}

// srun -N2 --ntasks-per-node=8 --pty bash
TEST(DetectSlurm, ACommandTypedIntoAShellOfTheStepIsAlone) {
  const auto plan = detect(with(kStep, "SLURM_STEP_TASKS_PER_NODE", "8(x2)"), /*is_typed=*/true);
  ASSERT_TRUE(plan && *plan);
  EXPECT_EQ((*plan)->nodes, 1);
  EXPECT_EQ((*plan)->tasks, 1);
  EXPECT_EQ((*plan)->workers, 2);
}

TEST(DetectSlurm, CountsTheGpusOfTheStepThatAreVisible) {
  const Variables all = without(kStep, "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(plan_of(with(all, "SLURM_STEP_GPUS", "3")).workers, 1);
  EXPECT_EQ(plan_of(with(all, "SLURM_STEP_GPUS", "0-3,6")).workers, 5);
  EXPECT_EQ(plan_of(with(all, "SLURM_STEP_GPUS", "")).workers, std::nullopt);
  EXPECT_EQ(plan_of(with(kStep, "SLURM_STEP_GPUS", "0-3,6")).workers, 2);
  EXPECT_EQ(plan_of(with(kStep, "CUDA_VISIBLE_DEVICES", "")).workers, std::nullopt);
}

// srun --ntasks-per-node=2, or tasks that do not divide evenly.
TEST(DetectSlurm, LocalTask0IsTheAgentOfItsNodeWithAWorkerForEachTask) {
  Variables task = with(kStep, "SLURM_STEP_TASKS_PER_NODE", "3,2");
  ClusterPlan plan = plan_of(task);
  EXPECT_EQ(plan.tasks, 3) << "all nodes must come to the same decision";
  EXPECT_EQ(plan.own_tasks, 2);
  EXPECT_EQ(plan.local_task, 0);
  EXPECT_EQ(plan.workers, 2);
  EXPECT_EQ(to_sentence(plan, 2, Taken::kNodes),
            "Slurm step 812.0: node 1 of 2, 2 workers (tasks of this node), rendezvous at "
            "node0:20812");
  EXPECT_EQ(plan_of(with(task, "SLURM_LOCALID", "1")).local_task, 1);
  EXPECT_THAT(error_of(without(task, "SLURM_LOCALID")), HasSubstr("SLURM_LOCALID: not set"));
  EXPECT_THAT(error_of(with(task, "SLURM_LOCALID", "x")), HasSubstr("SLURM_LOCALID: invalid"));
}

TEST(DetectSlurm, SaysWhatATaskMayNotUse) {
  const ClusterPlan plan = plan_of(with(kStep, "SLURM_CPUS_ON_NODE", "16"));
  EXPECT_EQ(remark_on_cpus(plan, 16), "");
  EXPECT_EQ(remark_on_cpus(plan, 2),
            "Slurm step 812.0: workers may use 2 of the 16 CPUs that the job has on "
            "this node (all of them: srun --cpu-bind=none)");
  // srun --exact in a job of more CPUs
  Variables narrow = with(kStep, "SLURM_JOB_CPUS_PER_NODE", "4,8");
  EXPECT_EQ(remark_on_cpus(plan_of(narrow), 1),
            "Slurm step 812.0: workers may use 1 of the 8 CPUs that the job has on this node (all "
            "of them: srun --cpus-per-task=8)");
  narrow["SLURM_CPUS_PER_TASK"] = "1";
  EXPECT_EQ(remark_on_cpus(plan_of(narrow), 1), "") << "the user wants it";
  // srun --ntasks-per-node=2 --gpus-per-task=1
  Variables task = with(kStep, "SLURM_STEP_TASKS_PER_NODE", "2(x2)");
  EXPECT_EQ(remark_on_cpus(plan_of(task), 16), "");
  task["CUDA_VISIBLE_DEVICES"] = "0";
  EXPECT_EQ(
      error_of(task),
      "Slurm step 812.0: a task sees 1 GPU, but its node has 2 workers (all GPUs of its tasks: "
      "srun --gpu-bind=none)");
}

TEST(DetectSlurm, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_EQ(
      error_of(without(kStep, "SLURM_STEP_NODELIST")),
      "SLURM_STEP_NODELIST: not set, although SLURM_STEP_ID is set (--no-detect: take nothing "
      "from the scheduler)");
  EXPECT_THAT(error_of(with(kStep, "SLURM_STEP_NODELIST", "node[0-")),
              HasSubstr("SLURM_STEP_NODELIST: invalid value 'node[0-'"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_NODEID", "2")),
              HasSubstr("SLURM_NODEID: invalid value '2' (expected less than 2"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_STEP_ID", "batch")), HasSubstr("expected a number"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_STEP_TASKS_PER_NODE", "1")),
              HasSubstr("expected 2 counts"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_JOB_ID", "x")), HasSubstr("SLURM_JOB_ID: invalid"));
}

}  // namespace
}  // namespace ddprun
