#include "launcher/cluster/core/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Pair;
using testing::UnorderedElementsAre;

using Variables = std::map<std::string, std::string, std::less<>>;

Result<std::optional<ClusterPlan>> detect(const Variables& variables, bool is_typed = false) {
  const auto lookup = [&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
  return detect_cluster(lookup, is_typed);
}

ClusterPlan plan_of(const Variables& variables) {
  const auto plan = detect(variables);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().message());
  EXPECT_TRUE(plan && *plan);
  return plan && *plan ? **plan : ClusterPlan{};
}

std::string error_of(const Variables& variables) {
  const auto plan = detect(variables);
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().message();
}

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables[name] = value;
  return variables;
}

Variables without(Variables variables, const std::string& name) {
  variables.erase(name);
  return variables;
}

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

TEST(DetectCluster, ReadsAStepOfSlurm) {
  const ClusterPlan plan = plan_of(kStep);
  EXPECT_EQ(plan.name, "Slurm step 812.0");
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.endpoint.host, "node0");
  EXPECT_EQ(plan.job_id, "812.0");
  EXPECT_EQ(plan.gpus, 2);
  EXPECT_EQ(plan.tasks, 1);
}

TEST(DetectCluster, AllNodesOfAStepAgreeAndOtherStepsHaveAnotherPort) {
  const HostPort endpoint = plan_of(kStep).endpoint;
  const Variables first = with(with(kStep, "SLURM_NODEID", "0"), "SLURMD_NODENAME", "node0");
  EXPECT_EQ(plan_of(first).endpoint, endpoint);
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
TEST(DetectCluster, TheStepCountsNotTheJob) {
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
  EXPECT_EQ(plan.gpus, std::nullopt) << "srun --gres=none: the GPUs are those of the job";
  EXPECT_THAT(option_texts(plan, Taken::kOneNode), testing::IsEmpty());
  EXPECT_EQ(to_sentence(plan, 1, Taken::kOneNode), "Slurm step 812.3: one node, 1 worker");
}

TEST(DetectCluster, ABatchScriptAndAShellOfSallocAreNoTasks) {
  EXPECT_FALSE(*detect(kBatchScript));
  EXPECT_FALSE(*detect(kSallocShell));
  EXPECT_FALSE(*detect({}));
  // use_interactive_step: srun starts the shell of salloc, in a step with a special number.
  EXPECT_FALSE(*detect(with(kStep, "SLURM_STEP_ID", "4294967290")));
}

// A container may get some variables only.
TEST(DetectCluster, AStepWithoutAJobIsNone) {
  EXPECT_FALSE(*detect(without(kStep, "SLURM_JOB_ID")));
}

// sbatch in a shell of srun --pty passes the variables of that step on.
TEST(DetectCluster, ABatchScriptThatWasSubmittedInAStepIsNoTask) {
  Variables script = kBatchScript;
  script["SLURMD_NODENAME"] = "node5";
  for (const char* old : {"SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE"}) {
    script[old] = kStep.at(old);
  }
  EXPECT_FALSE(*detect(script));
}

TEST(DetectCluster, AWorkerIsNoTaskButAJobThatItSubmitsIs) {
  EXPECT_FALSE(*detect(with(kStep, kStepVariable, "812.0")));
  EXPECT_TRUE(*detect(with(with(kStep, kStepVariable, "811.0"), "TORCHELASTIC_RUN_ID", "811.0")));
}

TEST(DetectCluster, AProcessOfMpirunIsNoTask) {
  EXPECT_FALSE(*detect(with(kStep, "OMPI_COMM_WORLD_SIZE", "2")));
}

// srun -N2 --ntasks-per-node=8 --pty bash
TEST(DetectCluster, ACommandTypedIntoAShellOfTheStepIsAlone) {
  const auto plan = detect(with(kStep, "SLURM_STEP_TASKS_PER_NODE", "8(x2)"), /*is_typed=*/true);
  ASSERT_TRUE(plan && *plan);
  EXPECT_EQ((*plan)->nodes, 1);
  EXPECT_EQ((*plan)->tasks, 1);
  EXPECT_EQ((*plan)->gpus, 2);
}

TEST(DetectCluster, CountsTheGpusOfTheStepThatAreVisible) {
  const Variables all = without(kStep, "CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(plan_of(with(all, "SLURM_STEP_GPUS", "3")).gpus, 1);
  EXPECT_EQ(plan_of(with(all, "SLURM_STEP_GPUS", "0-3,6")).gpus, 5);
  EXPECT_EQ(plan_of(with(all, "SLURM_STEP_GPUS", "")).gpus, std::nullopt);
  EXPECT_EQ(plan_of(with(kStep, "SLURM_STEP_GPUS", "0-3,6")).gpus, 2);
  EXPECT_EQ(plan_of(with(kStep, "CUDA_VISIBLE_DEVICES", "")).gpus, std::nullopt);
}

// All nodes must come to the same decision.
TEST(DetectCluster, CountsTheMostTasksOfANode) {
  EXPECT_EQ(plan_of(with(kStep, "SLURM_STEP_TASKS_PER_NODE", "2,1")).tasks, 2);
}

TEST(DetectCluster, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_EQ(
      error_of(without(kStep, "SLURM_STEP_NODELIST")),
      "SLURM_STEP_NODELIST: not set, although SLURM_STEP_ID is set (--no-detect: take nothing "
      "from Slurm)");
  EXPECT_THAT(error_of(with(kStep, "SLURM_STEP_NODELIST", "node[0-")),
              HasSubstr("SLURM_STEP_NODELIST: invalid value 'node[0-'"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_NODEID", "2")),
              HasSubstr("SLURM_NODEID: invalid value '2' (expected less than 2"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_STEP_ID", "batch")), HasSubstr("expected a number"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_STEP_TASKS_PER_NODE", "1")),
              HasSubstr("expected 2 counts"));
  EXPECT_THAT(error_of(with(kStep, "SLURM_JOB_ID", "x")), HasSubstr("SLURM_JOB_ID: invalid"));
}

TEST(OptionTexts, AreWhatAUserWouldType) {
  const ClusterPlan plan = plan_of(kStep);
  EXPECT_THAT(option_texts(plan, Taken::kWorkers),
              UnorderedElementsAre(Pair("nproc-per-node", "2")));
  EXPECT_THAT(option_texts(plan, Taken::kNodes),
              UnorderedElementsAre(Pair("nnodes", "2"), Pair("node-rank", "1"),
                                   Pair("nproc-per-node", "2"), Pair("rdzv-id", "812.0"),
                                   Pair("rdzv-endpoint", to_text(plan.endpoint))));
}

TEST(ToSentence, SaysWhatWasTaken) {
  const ClusterPlan plan = plan_of(kStep);
  EXPECT_EQ(to_sentence(plan, 2, Taken::kNodes),
            "Slurm step 812.0: node 1 of 2, 2 workers (GPUs of the step), rendezvous at "
            "node0:20812");
  EXPECT_EQ(to_sentence(plan, 4, Taken::kNodes),
            "Slurm step 812.0: node 1 of 2, 4 workers, rendezvous at node0:20812");
  EXPECT_EQ(to_sentence(plan, 2, Taken::kWorkers),
            "Slurm step 812.0: 2 workers (GPUs of the step)");
}

}  // namespace
}  // namespace ddprun
