// The detectors of SageMaker, SkyPilot, Vertex AI and Azure ML.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Composed from sagemaker-training-toolkit, ENVIRONMENT_VARIABLES.md.
const Variables kSageMaker{
    {"SM_CURRENT_HOST", "algo-2"},
    {"SM_HOSTS", R"(["algo-1","algo-2"])"},
    {"SM_NUM_CPUS", "32"},
    {"SM_NUM_GPUS", "4"},
    {"SM_RESOURCE_CONFIG", R"({"current_host":"algo-2","hosts":["algo-1","algo-2"]})"},
    {"SM_TRAINING_ENV",
     R"({"current_host":"algo-2","job_name":"preprod-2018-05-31-06-27-15-511","num_gpus":4})"}};

// Composed from SkyPilot, "Using Environment Variables".
const Variables kSkyPilot{{"SKYPILOT_NODE_IPS", "10.0.0.4\n10.0.0.5"},
                          {"SKYPILOT_NODE_RANK", "1"},
                          {"SKYPILOT_NUM_GPUS_PER_NODE", "8"},
                          {"SKYPILOT_TASK_ID", "sky-2023-07-06-21-18-31-563597_myclus_1"}};

// The example in Vertex AI, "Distributed training", with another task. The user's job may have any
// words in it.
std::string cluster_spec(const std::string& task) {
  return R"({"cluster":{
    "workerpool0":["cmle-training-workerpool0-ab-0:2222"],
    "workerpool1":["cmle-training-workerpool1-ab-0:2222","cmle-training-workerpool1-ab-1:2222"],
    "workerpool2":["cmle-training-workerpool2-ab-0:2222","cmle-training-workerpool2-ab-1:2222"]},
    "environment":"cloud", "task":)" +
         task + R"(,"job":{"args":["{\"task\":{\"index\":7}}"]}})";
}
const Variables kVertex{{"CLOUD_ML_PROJECT_ID", "1234"},
                        {"CLUSTER_SPEC", cluster_spec(R"({"type":"workerpool1","index":1})")}};

// Composed from Azure Machine Learning, "Distributed GPU training guide": distribution PyTorch,
// process_count_per_instance: 1, the second of two nodes.
const Variables kAzure{{"AZUREML_NODE_COUNT", "2"},
                       {"AZUREML_RUN_ID", "brave_hat_1"},
                       {"LOCAL_RANK", "0"},
                       {"MASTER_ADDR", "10.0.0.4"},
                       {"MASTER_PORT", "6105"},
                       {"NODE_RANK", "1"},
                       {"RANK", "1"},
                       {"WORLD_SIZE", "2"}};

TEST(DetectCloud, ReadsSageMaker) {
  const ClusterPlan plan = plan_of(kSageMaker);
  EXPECT_EQ(plan.name, "SageMaker job preprod-2018-05-31-06-27-15-511");
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(to_text(plan.endpoint), "algo-1:29500");
  EXPECT_EQ(plan.workers, 4);
  const std::string three = R"(["algo-1", "algo-2", "algo-3"])";
  EXPECT_EQ(plan_of(with(kSageMaker, "SM_HOSTS", three)).nodes, 3);
  EXPECT_EQ(
      plan_of(with(with(kSageMaker, "SM_HOSTS", three), "SM_CURRENT_HOST", "algo-3")).node_rank, 2);
  EXPECT_EQ(plan_of(with(kSageMaker, "SM_NUM_GPUS", "0")).workers, std::nullopt);
  EXPECT_EQ(plan_of(without(kSageMaker, "SM_TRAINING_ENV")).job_id, kDefaultJobId);
}

TEST(DetectCloud, ReadsSkyPilot) {
  const ClusterPlan plan = plan_of(kSkyPilot);
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(plan.endpoint.host, "10.0.0.4");
  EXPECT_EQ(plan.workers, 8);
  EXPECT_EQ(plan_of(with(kSkyPilot, "SKYPILOT_NODE_RANK", "0")).endpoint, plan.endpoint);
  const ClusterPlan other = plan_of(with(kSkyPilot, "SKYPILOT_TASK_ID", "sky-2_myclus_2"));
  EXPECT_NE(other.endpoint.port, plan.endpoint.port) << "tasks may share a machine";
}

// The setup commands of SkyPilot run on all nodes, but at different times.
TEST(DetectCloud, TheSetupOfSkyPilotIsNoTask) {
  EXPECT_FALSE(*detect(
      {{"SKYPILOT_SETUP_NODE_IPS", "10.0.0.4\n10.0.0.5"}, {"SKYPILOT_SETUP_NODE_RANK", "1"}}));
}

TEST(DetectCloud, ReadsVertexAi) {
  const ClusterPlan plan = plan_of(kVertex);
  EXPECT_EQ(plan.nodes, 3);
  EXPECT_EQ(plan.node_rank, 2);
  EXPECT_EQ(to_text(plan.endpoint), "cmle-training-workerpool0-ab-0:2222");
  const std::string primary = cluster_spec(R"({"type": "workerpool0", "index": 0, "trial": "1"})");
  EXPECT_EQ(plan_of(with(kVertex, "CLUSTER_SPEC", primary)).node_rank, 0);
}

TEST(DetectCloud, OtherPoolsOfVertexAiDoNotTrain) {
  const std::string server = cluster_spec(R"({"type":"workerpool2","index":0})");
  EXPECT_FALSE(*detect(with(kVertex, "CLUSTER_SPEC", server)));
  EXPECT_FALSE(*detect(with(kVertex, "CLUSTER_SPEC", R"({"cluster":"a string of others"})")));
  std::string elsewhere = kVertex.at("CLUSTER_SPEC");
  elsewhere.replace(elsewhere.find("\"cloud\""), 7, "\"own\"");
  EXPECT_FALSE(*detect(with(kVertex, "CLUSTER_SPEC", elsewhere)));
}

TEST(DetectCloud, ReadsAzureMl) {
  const ClusterPlan plan = plan_of(kAzure);
  EXPECT_EQ(plan.nodes, 2);
  EXPECT_EQ(plan.node_rank, 1);
  EXPECT_EQ(to_text(plan.endpoint), "10.0.0.4:6105");
  EXPECT_EQ(plan.tasks, 1);
  const ClusterPlan four = plan_of(with(with(kAzure, "WORLD_SIZE", "8"), "LOCAL_RANK", "3"));
  EXPECT_EQ(four.nodes, 2);
  EXPECT_EQ(four.tasks, 4);
  EXPECT_EQ(four.local_task, 3);
  EXPECT_FALSE(*detect(without(kAzure, "NODE_RANK"))) << "a job without distribution";
}

TEST(DetectCloud, AWorkerIsNoTask) {
  for (const Variables& node : {kSageMaker, kSkyPilot, kVertex, kAzure}) {
    EXPECT_FALSE(*detect(with(node, "TORCHELASTIC_RUN_ID", "none")));
  }
}

TEST(DetectCloud, SkyPilotOnKubernetesAndMpirunOnSageMaker) {
  Variables sky = kSkyPilot;
  sky.merge(Variables{{"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                      {"NVIDIA_VISIBLE_DEVICES", "GPU-fef8089b"}});
  EXPECT_EQ(plan_of(sky).workers, 8);
  Variables hydra = kSageMaker;
  hydra.merge(Variables{{"MPI_LOCALNRANKS", "1"}, {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}});
  EXPECT_EQ(plan_of(hydra).name, "Hydra job");
  EXPECT_EQ(plan_of(hydra).workers, 4) << "GPUs of the node";
}

TEST(DetectCloud, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_EQ(error_of(with(kSageMaker, "SM_CURRENT_HOST", "algo-3")),
            "SM_CURRENT_HOST: invalid value 'algo-3' (expected one of "
            "SM_HOSTS=[\"algo-1\",\"algo-2\"])");
  EXPECT_THAT(error_of(with(kSageMaker, "SM_HOSTS", "algo-1")), HasSubstr("SM_HOSTS: invalid"));
  EXPECT_THAT(error_of(with(kSageMaker, "SM_HOSTS", "[]")), HasSubstr("SM_HOSTS: invalid"));
  EXPECT_THAT(error_of(with(kSageMaker, "SM_NUM_GPUS", "99999")), HasSubstr("SM_NUM_GPUS"));
  EXPECT_EQ(error_of(with(kSkyPilot, "SKYPILOT_NODE_RANK", "2")),
            "SKYPILOT_NODE_RANK: invalid value '2' (expected less than 2, as SKYPILOT_NODE_IPS "
            "says)");
  EXPECT_THAT(error_of(with(kSkyPilot, "SKYPILOT_NODE_IPS", "\n")), HasSubstr("SKYPILOT_NODE_IPS"));
  for (const char* task : {R"({"type":"workerpool1"})", R"({"type":"workerpool1","index":2})",
                           R"({"type":"workerpool1","index":"x"})", "{}"}) {
    EXPECT_THAT(error_of(with(kVertex, "CLUSTER_SPEC", cluster_spec(task))),
                HasSubstr("CLUSTER_SPEC: invalid value"))
        << task;
  }
  EXPECT_THAT(error_of(without(kAzure, "MASTER_ADDR")), HasSubstr("MASTER_ADDR: not set"));
}

}  // namespace
}  // namespace ddprun
