// The detectors of controllers of Kubernetes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Composed from Kubernetes, "Job" and "Service", and NVIDIA's k8s-device-plugin: a pod of an
// Indexed Job or a JobSet. PET_NNODES is what a manifest passes.
const Variables kPod{{"HOSTNAME", "train-2"},
                     {"JOB_COMPLETION_INDEX", "2"},
                     {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                     {"KUBERNETES_SERVICE_PORT", "443"},
                     {"NVIDIA_VISIBLE_DEVICES", "GPU-fef8089b,GPU-07c3d1a2"}};

// Composed from LeaderWorkerSet's pod_utils.go: pod 1 of group 0 with 3 pods.
const Variables kLeaderWorkerSet{{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                                 {"LWS_GROUP_SIZE", "3"},
                                 {"LWS_LEADER_ADDRESS", "train-0.train.default"},
                                 {"LWS_WORKER_INDEX", "1"}};

// Composed from Volcano's "Pytorch Plugin User Guide" and pytorch.go: a job with a master and two
// workers; this is worker 1.
const Variables kVolcano{{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                         {"MASTER_ADDR", "pytorch-job-master-0.pytorch-job"},
                         {"MASTER_PORT", "23456"},
                         {"RANK", "2"},
                         {"VC_MASTER_HOSTS", "pytorch-job-master-0.pytorch-job"},
                         {"VC_MASTER_NUM", "1"},
                         {"VC_TASK_INDEX", "1"},
                         {"WORLD_SIZE", "3"}};

// Composed from Kubeflow Trainer's torch.go: node 1 of a TrainJob with two nodes. Its pods are
// those of a JobSet.
const Variables kTrainJob{{"JOB_COMPLETION_INDEX", "1"},
                          {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                          {"PET_MASTER_ADDR", "train-node-0-0.train"},
                          {"PET_MASTER_PORT", "29400"},
                          {"PET_NNODES", "2"},
                          {"PET_NODE_RANK", "1"},
                          {"PET_NPROC_PER_NODE", "auto"}};

// Composed from Kubeflow's training operator, envvar.go, master.go and service.go: worker 1 of a
// PyTorchJob with a master and two workers, without elasticPolicy.
const Variables kPyTorchJob{{"HOSTNAME", "train-worker-1"},
                            {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                            {"MASTER_ADDR", "train-master-0"},
                            {"MASTER_PORT", "23456"},
                            {"PYTHONUNBUFFERED", "0"},
                            {"RANK", "2"},
                            {"WORLD_SIZE", "3"}};

// Composed from the same, and elastic.go: worker 0 of an elastic PyTorchJob with a master.
const Variables kElasticPyTorchJob{{"HOSTNAME", "train-worker-0"},
                                   {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                                   {"MASTER_ADDR", "train-master-0"},
                                   {"MASTER_PORT", "23456"},
                                   {"PET_NNODES", "1:3"},
                                   {"PET_RDZV_BACKEND", "c10d"},
                                   {"PET_RDZV_ENDPOINT", "train-worker-0:23456"},
                                   {"RANK", "1"},
                                   {"WORLD_SIZE", "3"}};

// Composed from JobSet's "Concepts" and packaging/kubernetes/jobset.yaml: the first pod of the
// second Job of two. JobSet adds labels and names, but no variable.
const Variables kJobSet{{"HOSTNAME", "train-node-1-0"},
                        {"JOB_COMPLETION_INDEX", "0"},
                        {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                        {"PET_NNODES", "4"},
                        {"PET_RDZV_ENDPOINT", "train-node-0-0.train:29400"}};

// Returns whether a pod is one of those that no controller says anything about.
bool is_any_pod(const Variables& variables) {
  const ClusterPlan plan = plan_of(variables);
  return plan.has_only_workers && plan.nodes == 1 && !plan.workers;
}

TEST(DetectPod, PodsOfAJobSetWithTheSameIndexAreDifferentNodes) {
  const ClusterPlan plan = plan_of(kJobSet);
  EXPECT_EQ(plan.nodes, 4);
  EXPECT_EQ(plan.node_rank, std::nullopt) << "the service orders them";
  EXPECT_EQ(plan_of(with(kJobSet, "HOSTNAME", "train-node-0-0")).node_rank, std::nullopt);
}

TEST(DetectPod, APodOfAJobIsOneNodeUnlessTheManifestSaysMore) {
  const ClusterPlan alone = plan_of(kPod);
  EXPECT_EQ(alone.name, "Kubernetes pod with index 2");
  EXPECT_EQ(alone.nodes, 1);
  EXPECT_EQ(alone.node_rank, 0);
  EXPECT_EQ(alone.workers, 2);
  EXPECT_EQ(to_sentence(alone, 2, Taken::kOneNode),
            "Kubernetes pod with index 2: one node, 2 workers (GPUs of the pod)");

  const ClusterPlan four = plan_of(with(kPod, "PET_NNODES", "4"));
  EXPECT_EQ(four.nodes, 4);
  EXPECT_EQ(four.node_rank, 2);
  EXPECT_EQ(four.endpoint.host, "") << "the subdomain is not known";
  EXPECT_EQ(plan_of(with(kPod, "PET_NNODES", "2:8")).nodes, 8);
}

TEST(DetectPod, SaysWhatTheManifestMustAdd) {
  EXPECT_THAT(plan_of(with(kPod, "PET_NNODES", "4")).endpoint_remedy,
              HasSubstr("PET_RDZV_ENDPOINT=JOB-0.SERVICE:29400"));
  EXPECT_EQ(plan_of(with(kPod, "PET_NNODES", "4")).nodes_remedy, "");
  EXPECT_THAT(plan_of(kPod).nodes_remedy, HasSubstr("PET_NNODES is not set"));
  EXPECT_EQ(plan_of(with(kPod, "JOB_COMPLETION_INDEX", "0")).nodes_remedy, "")
      << "it may be the only pod";
}

// kubectl exec -it POD -- ddprun ./train
TEST(DetectPod, ACommandThatWasTypedNeedsNothingOfTheManifest) {
  for (const Variables& pod : {kPod, with(kPod, "PET_NNODES", "4")}) {
    const auto plan = detect(pod, /*is_typed=*/true);
    ASSERT_TRUE(plan && *plan);
    EXPECT_EQ((*plan)->nodes, 1);
    EXPECT_EQ((*plan)->nodes_remedy, "");
    EXPECT_EQ((*plan)->endpoint_remedy, "");
  }
}

TEST(DetectPod, AnIndexIsNoRankIfTwoPodsMayHaveIt) {
  // A JobSet of a leader and of workers.
  const Variables worker = with(kPod, "PET_RDZV_ENDPOINT", "train-leader-0-0.train:29400");
  EXPECT_EQ(plan_of(with(worker, "PET_NNODES", "4")).node_rank, std::nullopt);
}

TEST(DetectPod, AJobOfVolcanoWithoutThePluginPytorchIsAnyPod) {
  EXPECT_TRUE(is_any_pod(without(kVolcano, "RANK")));
  EXPECT_TRUE(is_any_pod(without(kVolcano, "MASTER_ADDR")));
}

TEST(DetectPod, AnIndexBeyondTheNodesIsNoRank) {
  EXPECT_EQ(plan_of(with(kPod, "PET_NNODES", "2")).node_rank, std::nullopt);
}

// The option's own check reports them.
TEST(DetectPod, LeavesWrongNumbersOfNodesToTheOption) {
  for (const char* nodes : {"", "many", "-3", "1:"}) {
    EXPECT_EQ(plan_of(with(kPod, "PET_NNODES", nodes)).nodes, 1) << nodes;
  }
}

TEST(DetectPod, OtherPodsGiveTheirGpusOrNothing) {
  const Variables pod = without(kPod, "JOB_COMPLETION_INDEX");
  EXPECT_EQ(plan_of(pod).name, "Kubernetes pod");
  EXPECT_EQ(plan_of(pod).workers, 2);
  EXPECT_FALSE(plan_of(pod).counts_gpus);
  EXPECT_FALSE(*detect(without(kPod, "KUBERNETES_SERVICE_HOST"))) << "no pod";
  for (const char* none : {"all", "none"}) {
    const Variables without_list = with(pod, "NVIDIA_VISIBLE_DEVICES", none);
    EXPECT_TRUE(is_any_pod(without_list)) << none;
    EXPECT_FALSE(plan_of(without_list).counts_gpus) << none;
  }
}

TEST(DetectPod, WithoutAListTheGpusAreThoseThatAreVisible) {
  for (const char* text : {"", "void", "/var/run/nvidia-container-devices"}) {
    const ClusterPlan plan = plan_of(with(kPod, "NVIDIA_VISIBLE_DEVICES", text));
    EXPECT_TRUE(plan.counts_gpus) << text;
    EXPECT_EQ(plan.workers, std::nullopt) << text;
    EXPECT_FALSE(plan.has_only_workers) << "it has an index";
  }
  EXPECT_TRUE(plan_of(without(kPod, "NVIDIA_VISIBLE_DEVICES")).counts_gpus);
}

TEST(DetectPod, ReadsALeaderWorkerSet) {
  const ClusterPlan plan = plan_of(kLeaderWorkerSet);
  EXPECT_EQ(plan.name, "LeaderWorkerSet train-0.train.default");
  EXPECT_EQ(plan.nodes, 3);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(to_text(plan.endpoint), "train-0.train.default:29500");
  EXPECT_EQ(plan.workers, std::nullopt);
}

TEST(DetectPod, ReadsAPyTorchJob) {
  const ClusterPlan worker = plan_of(kPyTorchJob);
  EXPECT_EQ(worker.name, "PyTorchJob train");
  EXPECT_EQ(worker.nodes, 3);
  EXPECT_EQ(worker.node_rank, 2);
  EXPECT_EQ(to_text(worker.endpoint), "train-master-0:23456");
  EXPECT_EQ(worker.job_id, "train");
  // Operators before 1.4 tell the master that it is localhost.
  for (const char* address : {"train-master-0", "localhost"}) {
    Variables master = with(kPyTorchJob, "HOSTNAME", "train-master-0");
    master["RANK"] = "0";
    master["MASTER_ADDR"] = address;
    const ClusterPlan plan = plan_of(master);
    EXPECT_EQ(plan.node_rank, 0);
    EXPECT_EQ(plan.endpoint, worker.endpoint) << address;
    EXPECT_EQ(plan.job_id, worker.job_id);
  }
}

// Such variables prove nothing if the pod's name does not agree with the rank.
TEST(DetectPod, AWorkerInAPodOfAPyTorchJobIsNoPod) {
  EXPECT_TRUE(is_any_pod(with(kPyTorchJob, "LOCAL_RANK", "0")));
  EXPECT_FALSE(*detect(with(kPyTorchJob, "TORCHELASTIC_RUN_ID", "none")));
  EXPECT_TRUE(is_any_pod(without(kPyTorchJob, "MASTER_ADDR")));
  for (const char* pod : {"train-worker-2", "train-worker-", "train-worker", "train-master-0",
                          "worker", "1", "-", ""}) {
    EXPECT_TRUE(is_any_pod(with(kPyTorchJob, "HOSTNAME", pod))) << pod;
  }
}

TEST(DetectPod, ReadsAJobOfVolcanoWithThePluginPytorch) {
  const ClusterPlan plan = plan_of(kVolcano);
  EXPECT_EQ(plan.nodes, 3);
  EXPECT_EQ(plan.node_rank, 2);
  EXPECT_EQ(to_text(plan.endpoint), "pytorch-job-master-0.pytorch-job:23456");
}

// The variables of torch.distributed alone may be those of a worker.
TEST(DetectPod, MasterAddrProvesNothing) {
  EXPECT_TRUE(is_any_pod(without(kVolcano, "VC_MASTER_HOSTS")));
  EXPECT_FALSE(*detect(with(kVolcano, "TORCHELASTIC_RUN_ID", "none"))) << "a worker";
  EXPECT_FALSE(*detect(with(kLeaderWorkerSet, "TORCHELASTIC_RUN_ID", "none")));
  EXPECT_FALSE(*detect(with(kPod, "TORCHELASTIC_RUN_ID", "none")));
}

// PET_* are options, and options win. The plan must not contradict them.
TEST(DetectPod, KubeflowNeedsOnlyItsOptions) {
  const ClusterPlan plan = plan_of(kTrainJob);
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.workers, std::nullopt);
  EXPECT_EQ(plan.tasks, 1);
  EXPECT_TRUE(is_any_pod(kElasticPyTorchJob));
}

// The pods of slurmd have variables of Kubernetes; so have jobs that were submitted in a pod.
TEST(DetectPod, SlurmAndMpirunInAPodAreNoPods) {
  Variables step = kPod;
  step.merge(Variables{{"SLURM_JOB_ID", "812"},
                       {"SLURM_NODEID", "1"},
                       {"SLURM_STEP_ID", "0"},
                       {"SLURM_STEP_NODELIST", "node[0-1]"},
                       {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
  EXPECT_EQ(plan_of(step).name, "Slurm step 812.0");
  Variables hydra = kPod;
  hydra.merge(Variables{{"MPI_LOCALNRANKS", "1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(plan_of(hydra).name, "Hydra job");
  EXPECT_EQ(plan_of(hydra).workers, 2) << "GPUs of the pod";
}

TEST(DetectPod, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_EQ(error_of(with(kPod, "JOB_COMPLETION_INDEX", "x")),
            "JOB_COMPLETION_INDEX: invalid value 'x' (expected a number)");
  EXPECT_EQ(error_of(with(kLeaderWorkerSet, "LWS_WORKER_INDEX", "3")),
            "LWS_WORKER_INDEX: invalid value '3' (expected less than 3, as LWS_GROUP_SIZE says)");
  EXPECT_THAT(error_of(with(kVolcano, "RANK", "9")), HasSubstr("RANK: invalid value '9'"));
  EXPECT_THAT(error_of(with(kPyTorchJob, "WORLD_SIZE", "2")), HasSubstr("RANK: invalid value '2'"));
}

}  // namespace
}  // namespace ddprun
