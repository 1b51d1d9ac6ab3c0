#include "launcher/core/worker_plan.h"

#include <gtest/gtest.h>

#include <map>

namespace ddprun {
namespace {

Assignment second_node() {
  return {.generation = Generation(4),
          .node_rank = NodeRank(1),
          .node_count = 2,
          .first_rank = Rank(3),
          .world_size = 5,
          .store = {"10.0.0.1", 4242},
          .restart_count = 1,
          .reason = ""};
}

PlanOptions options() {
  PlanOptions options;
  options.command = {.executable = "./train",
                     .arguments = {"--rank=${local_rank}", "${local_rank}${local_rank}", "x"}};
  options.slots = 2;
  options.run_id = "job";
  options.max_restarts = 3;
  options.log_directory = "/logs/attempt_1";
  return options;
}

std::map<std::string, std::string> variables(const WorkerPlan& plan) {
  return {plan.variables.begin(), plan.variables.end()};
}

TEST(WorkerPlan, GivesEachWorkerItsPlaceInTheWorld) {
  const std::vector<WorkerPlan> plans = plan_workers(options(), second_node());
  ASSERT_EQ(plans.size(), 2u);
  auto env = variables(plans[1]);
  EXPECT_EQ(env["RANK"], "4");
  EXPECT_EQ(env["LOCAL_RANK"], "1");
  EXPECT_EQ(env["WORLD_SIZE"], "5");
  EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "2");
  EXPECT_EQ(env["GROUP_RANK"], "1");
  EXPECT_EQ(env["GROUP_WORLD_SIZE"], "2");
  EXPECT_EQ(env["MASTER_ADDR"], "10.0.0.1");
  EXPECT_EQ(env["MASTER_PORT"], "4242");
  EXPECT_EQ(env["TORCHELASTIC_RESTART_COUNT"], "1");
  EXPECT_EQ(env["TORCHELASTIC_MAX_RESTARTS"], "3");
  EXPECT_EQ(env["TORCHELASTIC_RUN_ID"], "job");
  EXPECT_EQ(env["TORCHELASTIC_ERROR_FILE"], "/logs/attempt_1/1/error.json");
  EXPECT_EQ(env["DDPRUN_GENERATION"], "4");
}

TEST(WorkerPlan, WithVirtualLocalRanksEachWorkerIsTheFirstAndHasADeviceOfItsOwn) {
  PlanOptions virtually = options();
  virtually.own_devices = *devices_of("6,GPU-7,8", 2);
  const std::vector<WorkerPlan> plans = plan_workers(virtually, second_node());
  auto env = variables(plans[1]);
  EXPECT_EQ(env["LOCAL_RANK"], "0");
  EXPECT_EQ(env["LOCAL_WORLD_SIZE"], "2");
  EXPECT_EQ(env["RANK"], "4");
  EXPECT_EQ(env["CUDA_VISIBLE_DEVICES"], "GPU-7");
  EXPECT_EQ(plans[1].directory, "/logs/attempt_1/1") << "files have the place of its own";
  EXPECT_FALSE(
      variables(plan_workers(options(), second_node())[1]).contains("CUDA_VISIBLE_DEVICES"));
}

TEST(WorkerPlan, DevicesAreThoseThatAreVisible) {
  EXPECT_EQ(*devices_of("", 2), (std::vector<std::string>{"0", "1"}));
  EXPECT_EQ(*devices_of("3", 1), std::vector<std::string>{"3"});
  ASSERT_FALSE(devices_of("3,4", 3));
  EXPECT_EQ(devices_of("3,4", 3).error().message(),
            "CUDA_VISIBLE_DEVICES=3,4 has 2 devices for 3 workers");
}

TEST(WorkerPlan, TellsWorkersOfThePortsTheyMayListenOnWhereSomeWereGiven) {
  PlanOptions plan = options();
  EXPECT_FALSE(variables(plan_workers(plan, second_node())[0]).contains("DDPRUN_PORT_RANGE"));
  plan.ports = {29500, 29599};
  EXPECT_EQ(variables(plan_workers(plan, second_node())[0])["DDPRUN_PORT_RANGE"], "29500-29599");
}

TEST(WorkerPlan, ReplacesTheLocalRankInArgumentsAsTorchrunDoes) {
  const std::vector<WorkerPlan> plans = plan_workers(options(), second_node());
  EXPECT_EQ(plans[1].arguments, (std::vector<std::string>{"--rank=1", "11", "x"}));
}

TEST(WorkerPlan, SetsThreadsToOneOnlyWhereSeveralWorkersInheritNothing) {
  PlanOptions plan = options();
  EXPECT_EQ(variables(plan_workers(plan, second_node())[0])["OMP_NUM_THREADS"], "1");
  plan.inherits_omp_threads = true;
  EXPECT_FALSE(variables(plan_workers(plan, second_node())[0]).contains("OMP_NUM_THREADS"));
  plan.inherits_omp_threads = false;
  plan.slots = 1;
  EXPECT_FALSE(variables(plan_workers(plan, second_node())[0]).contains("OMP_NUM_THREADS"));
}

TEST(WorkerPlan, TellsRank0WhereItHasToServeTheStoreItself) {
  PlanOptions own_store = options();
  EXPECT_EQ(variables(plan_workers(own_store, second_node())[0])["TORCHELASTIC_USE_AGENT_STORE"],
            "True");
  own_store.agent_store = false;
  EXPECT_EQ(variables(plan_workers(own_store, second_node())[0])["TORCHELASTIC_USE_AGENT_STORE"],
            "False");
}

TEST(WorkerPlan, WithoutLogFilesTheErrorFileIsSetButEmpty) {
  PlanOptions plan = options();
  plan.log_directory = "";
  const WorkerPlan worker = plan_workers(plan, second_node())[0];
  EXPECT_EQ(variables(worker)["TORCHELASTIC_ERROR_FILE"], "");
  EXPECT_EQ(worker.directory, "");
}

}  // namespace
}  // namespace ddprun
