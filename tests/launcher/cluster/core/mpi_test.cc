// The detectors of Open MPI, Hydra and Flux.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "launcher/cluster/core/detector.h"
#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Recorded with Open MPI 4.1.4 (`mpirun -N 1 --host a,b env`): tasks 1 and 0, without the variables
// of the session's directories. The remote shell started the daemon of b on the same machine, so
// that both have one address. Addresses and the name of the machine were replaced.
const Variables kOpenMpi{
    {"OMPI_APP_CTX_NUM_PROCS", "2"},
    {"OMPI_COMMAND", "env"},
    {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
    {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
    {"OMPI_COMM_WORLD_NODE_RANK", "0"},
    {"OMPI_COMM_WORLD_RANK", "1"},
    {"OMPI_COMM_WORLD_SIZE", "2"},
    {"OMPI_MCA_ess_base_jobid", "320536577"},
    {"OMPI_MCA_orte_bound_at_launch", "1"},
    {"OMPI_MCA_orte_ess_num_procs", "2"},
    {"OMPI_MCA_orte_hnp_uri", "320536576.0;tcp://10.0.0.4:35121;tcp6://[fd00::2]:46717"},
    {"OMPI_MCA_orte_launch", "1"},
    {"OMPI_MCA_orte_local_daemon_uri", "320536576.1;tcp://10.0.0.4:36775;tcp6://[fd00::2]:33301"},
    {"OMPI_MCA_orte_num_nodes", "2"},
    {"OMPI_MCA_rmaps_ppr_n_pernode", "1"},
    {"OMPI_UNIVERSE_SIZE", "2"},
    {"PMIX_HOSTNAME", "node1"},
    {"PMIX_ID", "320536577.1"},
    {"PMIX_NAMESPACE", "320536577"},
    {"PMIX_RANK", "1"},
    {"PMIX_VERSION", "4.2.2rc2"}};
Variables first_of_open_mpi() {
  Variables first = kOpenMpi;
  first["OMPI_COMM_WORLD_RANK"] = "0";
  first["OMPI_MCA_orte_local_daemon_uri"] = first["OMPI_MCA_orte_hnp_uri"];
  return first;
}
// Recorded likewise with `mpirun -np 3 --host a:2,b:2 env`: what differs in the task of b.
Variables uneven_open_mpi() {
  Variables last = kOpenMpi;
  last["OMPI_COMM_WORLD_RANK"] = "2";
  last["OMPI_COMM_WORLD_SIZE"] = "3";
  return last;
}

// Recorded with Open MPI 5.0.11 in the same way: task 1. 5.0 has no OMPI_MCA_orte_*.
const Variables kOpenMpi5{{"OMPI_COMMAND", "env"},
                          {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                          {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"},
                          {"OMPI_COMM_WORLD_NODE_RANK", "0"},
                          {"OMPI_COMM_WORLD_RANK", "1"},
                          {"OMPI_COMM_WORLD_SIZE", "2"},
                          {"OMPI_MCA_num_procs", "2"},
                          {"OMPI_NUM_APP_CTX", "1"},
                          {"OMPI_TOOL_NAME", "mpirun"},
                          {"OMPI_UNIVERSE_SIZE", "2"},
                          {"OMPI_VERSION", "5.0.11"},
                          {"OMPI_WORLD_LOCAL_SIZE", "1"},
                          {"OMPI_WORLD_SIZE", "2"},
                          {"PMIX_HOSTNAME", "node-18"},
                          {"PMIX_NAMESPACE", "prterun-node-18-12408@1"},
                          {"PMIX_RANK", "1"},
                          {"PMIX_SERVER_URI2", "prterun-node-18-12408@0.1;tcp4://127.0.0.1:39541"},
                          {"PMIX_VERSION", "5.0.11rc1"},
                          {"PRTE_LAUNCHED", "1"}};

// Recorded with MPICH 4.0.2 (`mpiexec.hydra -hosts a,b -ppn 1 -n 2 env`): task 1; and what Intel
// MPI 2021.18 has besides.
const Variables kHydra{{"GFORTRAN_UNBUFFERED_PRECONNECTED", "y"},
                       {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME", "b"},
                       {"MPI_LOCALNRANKS", "1"},
                       {"MPI_LOCALRANKID", "0"},
                       {"PMI_FD", "12"},
                       {"PMI_RANK", "1"},
                       {"PMI_SIZE", "2"}};
constexpr const char* kIntelJob = "ab2f0000-fc24-0997-3f61-06006a45716a";  // I_MPI_HYDRA_UUID

// Composed from flux-environment(7): task 2 of `flux run -N4 --tasks-per-node=1`.
const Variables kFlux{{"FLUX_JOB_ID", "f3ETxsR9H"},
                      {"FLUX_JOB_NNODES", "4"},
                      {"FLUX_JOB_SIZE", "4"},
                      {"FLUX_TASK_LOCAL_ID", "0"},
                      {"FLUX_TASK_RANK", "2"},
                      {"FLUX_URI", "local:///run/flux/local"},
                      {"FLUX_KVS_NAMESPACE", "job-812"},
                      {"PMI_FD", "9"},
                      {"PMI_RANK", "2"},
                      {"PMI_SIZE", "4"}};

// The step of Slurm in which mpirun starts its daemon on another node.
const Variables kStepOfDaemon{{"SLURM_JOB_ID", "812"},          {"SLURM_NODEID", "0"},
                              {"SLURM_STEP_GPUS", "0-3"},       {"SLURM_STEP_ID", "0"},
                              {"SLURM_STEP_NODELIST", "node1"}, {"SLURM_STEP_TASKS_PER_NODE", "1"}};

Result<std::optional<ClusterPlan>> in_mpi(const Variables& variables) {
  return detect_mpi([&](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  });
}

ClusterPlan mpi_plan(const Variables& variables) {
  const auto plan = in_mpi(variables);
  EXPECT_TRUE(plan) << (plan ? "" : plan.error().message());
  EXPECT_TRUE(plan && *plan);
  return plan && *plan ? **plan : ClusterPlan{};
}

std::string mpi_error(const Variables& variables) {
  const auto plan = in_mpi(variables);
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().message();
}

TEST(DetectMpi, ReadsOneTaskANodeOfOpenMpi) {
  const ClusterPlan plan = mpi_plan(kOpenMpi);
  EXPECT_EQ(plan.name, "Open MPI job 320536577");
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.tasks, 1);
  EXPECT_EQ(plan.endpoint.host, "10.0.0.4");
  EXPECT_EQ(plan.workers, std::nullopt);
  EXPECT_EQ(mpi_plan(first_of_open_mpi()).endpoint, plan.endpoint);
  EXPECT_EQ(mpi_plan(first_of_open_mpi()).node_rank, 0);
}

TEST(DetectMpi, ReadsOneTaskANodeOfOpenMpi5) {
  const ClusterPlan plan = mpi_plan(kOpenMpi5);
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.endpoint.host, "node-18");
  EXPECT_EQ(plan.job_id, "prterun-node-18-12408@1");
}

// mpirun on a login node: the others would seek node rank 0 there.
TEST(DetectMpi, NodeRank0RefusesToBeElsewhere) {
  Variables elsewhere = with(first_of_open_mpi(), "OMPI_MCA_orte_local_daemon_uri", "1.1;x");
  EXPECT_EQ(mpi_plan(elsewhere).no_starter,
            "rank 0 is not on 10.0.0.4, where mpirun runs: give --rdzv-endpoint=HOST:PORT with the "
            "host of rank 0, --rdzv-id=NAME and --nnodes=2 (for this node alone, add --nnodes=1)");
  EXPECT_EQ(mpi_plan(kOpenMpi).no_starter, "");
  const Variables first = with(kOpenMpi5, "OMPI_COMM_WORLD_RANK", "0");
  EXPECT_THAT(mpi_plan(first).no_starter, HasSubstr("rank 0 is not on node-18"));
  Variables of_job = elsewhere;
  of_job.merge(Variables(kStepOfDaemon));
  EXPECT_EQ(plan_of(of_job).workers, 4) << "if the user gives the endpoint";
  elsewhere["OMPI_COMM_WORLD_SIZE"] = "4";
  elsewhere["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(mpi_plan(elsewhere).no_starter, HasSubstr("rank 0 is not on 10.0.0.4"));
  const Variables here = with(first, "PMIX_SERVER_URI2", "prterun-node-18-12408@0.0;tcp4://x:1");
  EXPECT_EQ(mpi_plan(here).endpoint.host, "node-18");
}

TEST(DetectMpi, TakesNoneOfSeveralAddresses) {
  for (const char* uri : {"1.0;tcp://10.0.0.4,172.17.0.1:35121",
                          "1.0;tcp://10.0.0.4:3512;tcp://172.17.0.1:3512", "1.0"}) {
    EXPECT_EQ(mpi_plan(with(kOpenMpi, "OMPI_MCA_orte_hnp_uri", uri)).endpoint.host, "") << uri;
  }
}

// mpirun -np 3 on two nodes. Both must know that one of them has two tasks.
TEST(DetectMpi, AllNodesCountTheSameTasks) {
  const ClusterPlan last = mpi_plan(uneven_open_mpi());
  EXPECT_EQ(last.nodes, 2);
  EXPECT_EQ(last.tasks, 2);
  EXPECT_EQ(last.own_tasks, 1);
  EXPECT_EQ(last.node_rank, std::nullopt);
  Variables first = with(uneven_open_mpi(), "OMPI_COMM_WORLD_RANK", "1");
  first = with(with(first, "OMPI_COMM_WORLD_LOCAL_SIZE", "2"), "OMPI_COMM_WORLD_LOCAL_RANK", "1");
  const ClusterPlan plan = mpi_plan(first);
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.tasks, 2);
  EXPECT_EQ(plan.own_tasks, 2);
  EXPECT_EQ(plan.local_task, 1);
  EXPECT_EQ(plan.remedy, "mpirun -N 1");
}

// Open MPI 5 does not say how many nodes there are: node a would count 2, and node b 3.
TEST(DetectMpi, UnevenTasksOnUncountedNodesAreRefused) {
  Variables first = with(kOpenMpi5, "OMPI_COMM_WORLD_SIZE", "3");
  first["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_THAT(mpi_error(first), HasSubstr("expected the same number of tasks on each"));
}

TEST(DetectMpi, ReadsHydraWhichNamesNoHost) {
  const ClusterPlan plan = plan_of(kHydra);
  EXPECT_EQ(plan.name, "Hydra job");
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.endpoint.host, "");
  EXPECT_EQ(plan.job_id, kDefaultJobId);
  EXPECT_EQ(plan_of(with(kHydra, "I_MPI_HYDRA_UUID", kIntelJob)).job_id, kIntelJob);
  const ClusterPlan two = plan_of(with(with(kHydra, "MPI_LOCALNRANKS", "2"), "PMI_SIZE", "4"));
  EXPECT_EQ(two.nodes, 2);
  EXPECT_EQ(two.tasks, 2);
}

TEST(DetectMpi, ReadsFlux) {
  const ClusterPlan plan = plan_of(kFlux);
  EXPECT_EQ(plan.name, "Flux job f3ETxsR9H");
  EXPECT_EQ(plan.nodes, 4);
  EXPECT_EQ(plan.node_rank, 2);
  EXPECT_EQ(plan.endpoint.host, "");
  const ClusterPlan two = plan_of(with(with(kFlux, "FLUX_JOB_SIZE", "8"), "FLUX_TASK_RANK", "7"));
  EXPECT_EQ(two.nodes, 4);
  EXPECT_EQ(two.tasks, 2);
  EXPECT_EQ(two.own_tasks, 2);
  EXPECT_EQ(error_of(with(kFlux, "FLUX_JOB_SIZE", "6")),
            "FLUX_JOB_SIZE: invalid value '6' (expected the same number of tasks on each of 4 "
            "nodes: flux run --tasks-per-node=1)");
}

TEST(DetectMpi, TheGpusOfAFluxJobAreItsWorkers) {
  const Variables task = with(kFlux, "CUDA_VISIBLE_DEVICES", "0,1,2,3");
  EXPECT_EQ(to_sentence(plan_of(task), 4, Taken::kNodes),
            "Flux job f3ETxsR9H: node 2 of 4, 4 workers (GPUs of the job)");
  Variables none = with(kFlux, "CUDA_VISIBLE_DEVICES", "-1");
  EXPECT_EQ(plan_of(none).workers, std::nullopt);
  const Variables pod{{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                      {"NVIDIA_VISIBLE_DEVICES", "GPU-6da1,GPU-07c3"}};
  none.merge(Variables(pod));
  EXPECT_EQ(plan_of(none).workers, std::nullopt) << "those of the pod were not granted";
  EXPECT_FALSE(plan_of(none).counts_gpus);
  Variables hydra = kHydra;
  hydra.merge(Variables(pod));
  EXPECT_EQ(plan_of(hydra).workers, 2);
  EXPECT_EQ(plan_of(with(task, "FLUX_JOB_SIZE", "8")).workers, 2) << "one for each task";
}

// Composed from what Open MPI 5.0.11 gave, without what Open MPI itself adds.
TEST(DetectMpi, ATaskOfPrrteAloneIsToldWhatItNeeds) {
  const Variables task{
      {"PMIX_NAMESPACE", "prterun-node-18-12408@1"}, {"PMIX_RANK", "1"}, {"PRTE_LAUNCHED", "1"}};
  const ClusterPlan plan = plan_of(task);
  EXPECT_EQ(plan.name, "PRRTE job");
  EXPECT_EQ(plan.nodes, 1);
  EXPECT_THAT(plan.nodes_remedy, HasSubstr("give --nnodes, --nproc-per-node, --rdzv-id=NAME and"));
  Variables inside = task;
  inside.merge(Variables(kStepOfDaemon));
  EXPECT_EQ(plan_of(inside).workers, std::nullopt) << "the node may have other tasks";
  EXPECT_FALSE(*detect(with(task, "TORCHELASTIC_RUN_ID", "none"))) << "a worker";
}

// The shell of flux alloc has FLUX_URI only. Slurm's own PMI has no MPI_LOCALNRANKS.
TEST(DetectMpi, OtherProcessesAreNoTasks) {
  EXPECT_FALSE(*in_mpi({{"FLUX_URI", "local:///run/flux/local"}}));
  EXPECT_FALSE(*in_mpi({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"PMI_FD", "12"}}));
  EXPECT_FALSE(*in_mpi({{"PMIX_NAMESPACE", "slurm.pmix.812.0"}, {"PMIX_RANK", "1"}}));
  EXPECT_FALSE(*in_mpi(with(kOpenMpi, "TORCHELASTIC_RUN_ID", "320536577"))) << "a worker";
}

// mpirun starts its daemons by srun: they and their tasks have the variables of that step.
TEST(DetectMpi, MpirunInAStepOfSlurmIsMpirun) {
  Variables inside = kOpenMpi;
  for (const auto& [name, value] : Variables{{"SLURM_JOB_ID", "812"},
                                             {"SLURM_NODEID", "0"},
                                             {"SLURM_STEP_ID", "0"},
                                             {"SLURM_STEP_NODELIST", "node1"},
                                             {"SLURM_STEP_TASKS_PER_NODE", "1"}}) {
    inside[name] = value;
  }
  EXPECT_EQ(mpi_plan(inside).nodes, 2);
  inside.merge(Variables(kHydra));
  EXPECT_EQ(mpi_plan(inside).name, "Open MPI job 320536577");
  Variables hydra = kHydra;
  hydra.merge(Variables(inside));
  for (const auto& [name, value] : kOpenMpi) hydra.erase(name);
  EXPECT_EQ(plan_of(hydra).name, "Hydra job");
}

// mpirun -N 1 in a job of Slurm with GPUs: in its batch script, and on the other nodes.
TEST(DetectMpi, TheGpusOfTheJobInWhichMpirunRunsAreItsWorkers) {
  Variables script = first_of_open_mpi();
  script.merge(Variables{{"SLURMD_NODENAME", "node0"},
                         {"SLURM_GPUS_ON_NODE", "4"},
                         {"SLURM_JOB_ID", "812"},
                         {"SLURM_JOB_NODELIST", "node[0-1]"},
                         {"SLURM_NTASKS", "16"},
                         {"SLURM_TASKS_PER_NODE", "8(x2)"}});
  EXPECT_EQ(plan_of(script).name, "Open MPI job 320536577");
  EXPECT_EQ(plan_of(script).workers, 4);
  EXPECT_EQ(plan_of(script).workers_are, "GPUs of the job");
  EXPECT_EQ(plan_of(without(script, "SLURM_GPUS_ON_NODE")).workers, std::nullopt)
      << "mpirun starts the tasks";
  Variables other = kOpenMpi;
  other.merge(Variables(kStepOfDaemon));
  EXPECT_EQ(plan_of(other).workers, 4);
  EXPECT_EQ(plan_of(other).nodes, 2);
  other["OMPI_COMM_WORLD_SIZE"] = "4";
  other["OMPI_COMM_WORLD_LOCAL_SIZE"] = "2";
  EXPECT_EQ(plan_of(other).workers, 2) << "one for each task";
  EXPECT_EQ(plan_of(with(kHydra, "CUDA_VISIBLE_DEVICES", "0,1")).workers, std::nullopt)
      << "no scheduler gave them";
}

// blaunch starts the daemon of mpirun on the second node.
TEST(DetectMpi, TheGpusOfAJobOfLsfAreTheWorkersOfEachNode) {
  Variables first = first_of_open_mpi();
  first.merge(Variables{{"CUDA_VISIBLE_DEVICES", "0,1,2,3"},
                        {"LSB_JOBID", "77"},
                        {"LSB_MCPU_HOSTS", "hostA 8 hostB 8"}});
  EXPECT_EQ(plan_of(first).workers, 4);
  EXPECT_TRUE(plan_of(first).starter.empty());
  EXPECT_EQ(plan_of(with(first, "LSF_PM_TASKID", "2")).workers, 4);
}

TEST(DetectMpi, MpirunInFluxIsMpirun) {
  Variables inside = kFlux;
  inside.merge(Variables(kOpenMpi));
  EXPECT_EQ(mpi_plan(inside).name, "Open MPI job 320536577");
}

// Azure ML and Azure Batch: mpirun has several addresses there.
TEST(DetectMpi, TakesTheHostFromAzureBatch) {
  const Variables azure =
      with(without(kOpenMpi, "OMPI_MCA_orte_hnp_uri"), "AZ_BATCH_MASTER_NODE", "10.0.0.6:6000");
  EXPECT_EQ(mpi_plan(azure).endpoint.host, "10.0.0.6");
  EXPECT_TRUE(mpi_plan(azure).next_ports.empty()) << "rank 0 may be on another node";
}

TEST(DetectMpi, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_EQ(mpi_error(with(kOpenMpi, "OMPI_COMM_WORLD_RANK", "2")),
            "OMPI_COMM_WORLD_RANK: invalid value '2' (expected less than 2, as "
            "OMPI_COMM_WORLD_SIZE says)");
  EXPECT_THAT(mpi_error(with(kOpenMpi, "OMPI_COMM_WORLD_SIZE", "two")),
              HasSubstr("OMPI_COMM_WORLD_SIZE: invalid value 'two'"));
  EXPECT_EQ(error_of(without(kHydra, "PMI_SIZE")),
            "PMI_SIZE: not set, although MPI_LOCALNRANKS is set (--no-detect: take nothing from "
            "the scheduler)");
}

}  // namespace
}  // namespace ddprun
