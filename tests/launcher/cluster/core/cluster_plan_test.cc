#include "launcher/cluster/core/cluster_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;
using testing::UnorderedElementsAre;

// The second of two nodes.
const ClusterPlan kPlan{.name = "Slurm step 812.0",
                        .nodes = 2,
                        .node_rank = 1,
                        .endpoint = {"node0", 20812},
                        .job_id = "812.0",
                        .workers = 2,
                        .workers_are = "GPUs of the step",
                        .cpus = 16,
                        .cpu_remedy = "srun --cpu-bind=none"};

TEST(OptionTexts, AreWhatAUserWouldType) {
  EXPECT_THAT(option_texts(kPlan, Taken::kWorkers),
              UnorderedElementsAre(Pair("nproc-per-node", "2")));
  EXPECT_THAT(
      option_texts(kPlan, Taken::kNodes),
      UnorderedElementsAre(Pair("nnodes", "2"), Pair("node-rank", "1"), Pair("nproc-per-node", "2"),
                           Pair("rdzv-id", "812.0"), Pair("rdzv-endpoint", "node0:20812")));
  EXPECT_THAT(option_texts(kPlan, Taken::kStarter), IsEmpty());
  EXPECT_THAT(option_texts(kPlan, Taken::kWait), IsEmpty());
}

TEST(OptionTexts, AreOnlyWhatTheSchedulerSays) {
  ClusterPlan plan = kPlan;
  plan.node_rank.reset();
  plan.workers.reset();
  plan.endpoint = {};
  EXPECT_THAT(option_texts(plan, Taken::kNodes),
              UnorderedElementsAre(Pair("nnodes", "2"), Pair("rdzv-id", "812.0")));
}

TEST(ToSentence, SaysWhatWasTaken) {
  EXPECT_EQ(to_sentence(kPlan, 2, Taken::kNodes),
            "Slurm step 812.0: node 1 of 2, 2 workers (GPUs of the step), rendezvous at "
            "node0:20812");
  EXPECT_EQ(to_sentence(kPlan, 4, Taken::kNodes),
            "Slurm step 812.0: node 1 of 2, 4 workers, rendezvous at node0:20812");
  EXPECT_EQ(to_sentence(kPlan, 2, Taken::kWorkers),
            "Slurm step 812.0: 2 workers (GPUs of the step)");
  EXPECT_EQ(to_sentence(kPlan, 1, Taken::kOneNode), "Slurm step 812.0: one node, 1 worker");
  EXPECT_EQ(to_sentence(kPlan, 0, Taken::kStarter), "Slurm step 812.0: 2 nodes");
  ClusterPlan plan = kPlan;
  plan.node_rank.reset();
  EXPECT_EQ(to_sentence(plan, 1, Taken::kNodes),
            "Slurm step 812.0: 2 nodes, 1 worker, rendezvous at node0:20812");
}

TEST(ToSentence, SaysHowOftenTheJobWasRequeued) {
  ClusterPlan plan = kPlan;
  plan.attempt = 1;
  EXPECT_EQ(to_sentence(plan, 1, Taken::kOneNode),
            "Slurm step 812.0: one node, 1 worker, requeued 1 time");
}

TEST(RemarkOnCpus, SaysThatWorkersMayUseFewerCpusThanTheJobHas) {
  EXPECT_EQ(remark_on_cpus(kPlan, 16), "");
  EXPECT_EQ(remark_on_cpus(kPlan, 2),
            "Slurm step 812.0: workers may use 2 of the 16 CPUs that the job has on "
            "this node (all of them: srun --cpu-bind=none)");
  ClusterPlan plan = kPlan;
  plan.cpus = 0;
  EXPECT_EQ(remark_on_cpus(plan, 2), "") << "the scheduler does not say";
}

}  // namespace
}  // namespace ddprun
