// The detectors of PBS, Grid Engine and LSF.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Composed from Torque's start_exec.c: a batch script of `qsub -l nodes=1:ppn=8:gpus=2`.
const Variables kPbs{{"CUDA_VISIBLE_DEVICES", "0,1"},
                     {"PBS_ENVIRONMENT", "PBS_BATCH"},
                     {"PBS_JOBID", "12.server"},
                     {"PBS_NODEFILE", "/var/spool/torque/aux//12.server"},
                     {"PBS_NODENUM", "0"},
                     {"PBS_NP", "8"},
                     {"PBS_NUM_NODES", "1"},
                     {"PBS_NUM_PPN", "8"},
                     {"PBS_TASKNUM", "1"}};

// Composed from submit(1) of Son of Grid Engine: a batch script of `qsub -pe mpi 8` on 2 hosts.
const Variables kGridEngine{{"JOB_ID", "4711"},
                            {"JOB_NAME", "train"},
                            {"NHOSTS", "2"},
                            {"NSLOTS", "8"},
                            {"PE", "mpi"},
                            {"PE_HOSTFILE", "/var/spool/sge/n1/active_jobs/4711.1/pe_hostfile"},
                            {"SGE_ROOT", "/opt/sge"},
                            {"SGE_TASK_ID", "undefined"}};

// Composed from IBM Spectrum LSF, "Environment variables set for job execution": task 2 of
// `bsub -n 3 -R 'span[ptile=1]' blaunch ...`.
const Variables kLsf{{"CUDA_VISIBLE_DEVICES", "0,1,2,3"},
                     {"LSB_DJOB_NUMPROC", "3"},
                     {"LSB_HOSTS", "hostA hostB hostC"},
                     {"LSB_JOBID", "77"},
                     {"LSB_JOBINDEX", "0"},
                     {"LSB_MCPU_HOSTS", "hostA 1 hostB 1 hostC 1"},
                     {"LSF_PM_TASKID", "2"}};

TEST(DetectBatchJob, AJobOfOneNodeGivesItsGpus) {
  const ClusterPlan plan = plan_of(kPbs);
  EXPECT_EQ(plan.name, "PBS job 12.server");
  EXPECT_EQ(plan.nodes, 1);
  EXPECT_EQ(plan.workers, 2);
  EXPECT_EQ(to_sentence(plan, 2, Taken::kOneNode),
            "PBS job 12.server: one node, 2 workers (visible GPUs)");
  const ClusterPlan grid = plan_of(with(kGridEngine, "NHOSTS", "1"));
  EXPECT_EQ(grid.name, "Grid Engine job 4711");
  EXPECT_EQ(grid.workers, std::nullopt) << "slots are not workers";
}

TEST(DetectBatchJob, ABatchScriptOfSeveralNodesIsToldHowToStartOnAll) {
  const ClusterPlan four = plan_of(with(kPbs, "PBS_NUM_NODES", "4"));
  EXPECT_EQ(four.no_starter,
            "it has 4 nodes: start ddprun on each of them, `pbsdsh -u sh -lc \"cd $PBS_O_WORKDIR; "
            "ddprun --nnodes=4 --rdzv-endpoint=$(hostname):29400 --rdzv-id=$PBS_JOBID ...\"` "
            "(for this node alone, add --nnodes=1)");
  EXPECT_EQ(four.workers, 2) << "for the ddprun of each node, whose endpoint is given";
  EXPECT_THAT(plan_of(kGridEngine).no_starter,
              HasSubstr("it has 2 nodes: start ddprun on each of them, `for h in $(cut -d' ' -f1 "
                        "$PE_HOSTFILE); do qrsh -inherit -V $h ddprun --nnodes=2 "
                        "--rdzv-endpoint=$(hostname):29400 --rdzv-id=$JOB_ID.$SGE_TASK_ID ..."));
}

// qsub -I: the other nodes have no such command.
TEST(DetectBatchJob, ACommandThatWasTypedIsOfThisNodeAlone) {
  for (const Variables& shell :
       {with(kPbs, "PBS_NUM_NODES", "4"), without(kPbs, "PBS_NUM_NODES")}) {
    const auto plan = detect(shell, /*is_typed=*/true);
    ASSERT_TRUE(plan && *plan);
    EXPECT_EQ((*plan)->nodes, 1);
    EXPECT_EQ((*plan)->workers, 2);
    EXPECT_EQ((*plan)->no_starter, "");
    EXPECT_FALSE((*plan)->must_be_counted());
  }
}

ClusterPlan counted_plan(const Variables& variables, std::string_view answer) {
  ClusterPlan plan = plan_of(variables);
  EXPECT_TRUE(plan.must_be_counted());
  count_nodes(plan, answer);
  return plan;
}

TEST(DetectBatchJob, PbsProSaysTheNodesInAFile) {
  const Variables pro = without(kPbs, "PBS_NUM_NODES");
  EXPECT_EQ(plan_of(pro).node_file, "/var/spool/torque/aux//12.server");
  const ClusterPlan one = counted_plan(pro, "n1\nn1\n");
  EXPECT_EQ(one.nodes, 1);
  EXPECT_EQ(one.workers, 2);
  EXPECT_EQ(one.no_starter + one.nodes_remedy, "");
  const ClusterPlan two = counted_plan(pro, "n1\nn2\n");
  EXPECT_EQ(two.no_starter,
            "it has 2 nodes: start ddprun on each of them, `pbsdsh -- sh -lc \"cd $PBS_O_WORKDIR; "
            "ddprun --nnodes=2 --rdzv-endpoint=$(hostname):29400 --rdzv-id=$PBS_JOBID ...\"` "
            "(for this node alone, add --nnodes=1)");
  EXPECT_THAT(counted_plan(pro, "n1\nn1\nn2\nn2\n").no_starter, HasSubstr("it has 2 nodes"))
      << "slots are not nodes";
  EXPECT_THAT(counted_plan(pro, "n1\nn1\nn2\nn2\n").no_starter, HasSubstr("one slot on each"));
  EXPECT_THAT(counted_plan(pro, "").nodes_remedy, HasSubstr("aux//12.server does not say"));
  EXPECT_FALSE(*detect(without(pro, "PBS_NODEFILE")));
}

// Composed from flux-environment(7): the script of `flux batch -N 4`.
TEST(DetectBatchJob, FluxIsAsked) {
  const Variables flux{{"FLUX_ENCLOSING_ID", "f3ETxsR9H"},
                       {"FLUX_URI", "local:///tmp/flux-2aZq/local-0"}};
  EXPECT_EQ(plan_of(flux).node_count_command,
            (std::vector<std::string>{"flux", "getattr", "size"}));
  EXPECT_EQ(counted_plan(flux, "1\n").no_starter, "");
  const ClusterPlan four = counted_plan(flux, "4\n");
  EXPECT_EQ(four.name, "Flux job f3ETxsR9H");
  EXPECT_EQ(four.no_starter,
            "it has 4 nodes: start ddprun on each of them, `flux run -N $(flux getattr size) "
            "--tasks-per-node=1 ddprun --nnodes=4 --rdzv-endpoint=$(hostname):29400 ...`; "
            "with GPUs, add --gpus-per-node=N to flux run (for this node alone, add --nnodes=1)");
  EXPECT_THAT(counted_plan(flux, "flux: no broker\n").nodes_remedy, HasSubstr("give --nnodes"));
}

TEST(DetectBatchJob, ABatchScriptOfLsfStartsDdprunOnEachHost) {
  const ClusterPlan plan =
      plan_of(with(without(kLsf, "LSF_PM_TASKID"), "LSB_MCPU_HOSTS", "hostA 4 hostB 4"));
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.starter, (std::vector<std::string>{"blaunch", "-z", "hostA hostB"}));
  EXPECT_EQ(plan.starter_variables, (std::vector<std::string>{"LSB_MCPU_HOSTS=hostA 1 hostB 1",
                                                              "DDPRUN_STARTED_BY_BLAUNCH=1"}));
}

TEST(DetectBatchJob, RefusesATaskOfLsfWithoutItsNumberInsteadOfStartingAllHostsAgain) {
  const Variables started = with(kLsf, "DDPRUN_STARTED_BY_BLAUNCH", "1");
  EXPECT_EQ(plan_of(started).node_rank, 1);
  EXPECT_THAT(error_of(without(started, "LSF_PM_TASKID")),
              HasSubstr("LSF job 77: blaunch started this ddprun without LSF_PM_TASKID: "));
}

TEST(DetectBatchJob, AJobIdOfOthersIsNoGridEngine) {
  EXPECT_FALSE(*detect({{"JOB_ID", "4711"}, {"NHOSTS", "2"}}));
}

TEST(DetectBatchJob, ReadsATaskOfBlaunch) {
  const ClusterPlan plan = plan_of(kLsf);
  EXPECT_EQ(plan.name, "LSF job 77");
  EXPECT_EQ(plan.nodes, 3);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.endpoint.host, "hostA");
  EXPECT_EQ(plan.workers, 4);
  EXPECT_EQ(plan_of(with(kLsf, "LSF_PM_TASKID", "1")).endpoint, plan.endpoint);
  const ClusterPlan of_array = plan_of(with(kLsf, "LSB_JOBINDEX", "3"));
  EXPECT_EQ(of_array.job_id, "77[3]");
  EXPECT_NE(of_array.endpoint.port, plan.endpoint.port);
}

TEST(DetectBatchJob, ReadsAnLsfJobOfOneHost) {
  const ClusterPlan plan =
      plan_of(with(without(kLsf, "LSF_PM_TASKID"), "LSB_MCPU_HOSTS", "hostA 8"));
  EXPECT_EQ(plan.nodes, 1);
  EXPECT_EQ(plan.workers, 4);
}

TEST(DetectBatchJob, RefusesSeveralTasksOnAHost) {
  EXPECT_EQ(error_of(with(kLsf, "LSB_MCPU_HOSTS", "hostA 4 hostB 4")),
            "LSF job 77: blaunch starts 4 tasks on hostA, but one ddprun starts all workers of a "
            "host: call ddprun without blaunch, and it starts itself on each host");
}

TEST(DetectBatchJob, JsrunCountsItsOwnTasks) {
  EXPECT_FALSE(*detect(with(without(kLsf, "LSF_PM_TASKID"), "JSM_NAMESPACE_RANK", "0")));
}

TEST(DetectBatchJob, AWorkerIsNoTask) {
  for (const Variables& job : {kPbs, kGridEngine, kLsf}) {
    EXPECT_FALSE(*detect(with(job, "TORCHELASTIC_RUN_ID", "none")));
  }
}

TEST(DetectBatchJob, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_THAT(error_of(with(kPbs, "PBS_NUM_NODES", "x")),
              HasSubstr("PBS_NUM_NODES: invalid value 'x'"));
  EXPECT_THAT(error_of(without(kPbs, "PBS_JOBID")), HasSubstr("PBS_JOBID: not set"));
  for (const char* hosts : {"hostA", "hostA 1 hostB", "hostA x", "hostA 0"}) {
    EXPECT_THAT(error_of(with(kLsf, "LSB_MCPU_HOSTS", hosts)),
                HasSubstr("LSB_MCPU_HOSTS: invalid value"));
  }
  EXPECT_EQ(error_of(with(kLsf, "LSF_PM_TASKID", "4")),
            "LSF_PM_TASKID: invalid value '4' (expected at most 3, the number of hosts in "
            "LSB_MCPU_HOSTS=hostA 1 hostB 1 hostC 1)");
  EXPECT_THAT(error_of(with(kLsf, "LSF_PM_TASKID", "0")), HasSubstr("LSF_PM_TASKID"));
}

}  // namespace
}  // namespace ddprun
