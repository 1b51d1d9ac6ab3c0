#include "launcher/plan/core/worker_plan.h"

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
  options.options.rdzv_id = "job";
  options.submission = "job-7";
  options.options.max_restarts = 3;
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
  EXPECT_EQ(env["DDPRUN_SUBMISSION"], "job-7");
}

TEST(WorkerPlan, WithVirtualLocalRanksEachWorkerIsTheFirstAndHasADeviceOfItsOwn) {
  PlanOptions virtually = options();
  virtually.options.virtual_local_rank = true;
  virtually.own_devices = {"6", "GPU-7"};
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

TEST(WorkerPlan, AWorkerThatSeesOnlyItsOwnDeviceKeepsItsLocalRank) {
  PlanOptions own = options();
  own.own_devices = {"6", "GPU-7"};
  auto env = variables(plan_workers(own, second_node())[1]);
  EXPECT_EQ(env["LOCAL_RANK"], "1");
  EXPECT_EQ(env["CUDA_VISIBLE_DEVICES"], "GPU-7");
}

TEST(WorkerPlan, TellsWorkersOfThePortsTheyMayListenOnWhereSomeWereGiven) {
  PlanOptions plan = options();
  EXPECT_FALSE(variables(plan_workers(plan, second_node())[0]).contains("DDPRUN_PORT_RANGE"));
  plan.options.ports = {29500, 29599};
  EXPECT_EQ(variables(plan_workers(plan, second_node())[0])["DDPRUN_PORT_RANGE"], "29500-29599");
}

TEST(WorkerPlan, ReplacesTheLocalRankInArgumentsAsTorchrunDoes) {
  const std::vector<WorkerPlan> plans = plan_workers(options(), second_node());
  EXPECT_EQ(plans[1].arguments, (std::vector<std::string>{"--rank=1", "11", "x"}));
}

TEST(WorkerPlan, KnowsTheMacroInEveryFormAndTouchesNothingElse) {
  PlanOptions plan = options();
  plan.command.arguments = {
      "a$local_rank/b", "$local_rank",    "$local_ranks ${local_ranks} $local",
      "$$local_rank",   "$${local_rank}", "echo $$ $HOME $",
      "${local_rank"};
  EXPECT_EQ(
      plan_workers(plan, second_node())[1].arguments,
      (std::vector<std::string>{"a1/b", "1", "$local_ranks ${local_ranks} $local", "$local_rank",
                                "${local_rank}", "echo $$ $HOME $", "${local_rank"}));
}

TEST(WorkerPlan, AListOfDevicesThatIsGivenIsDividedToo) {
  PlanOptions own = options();
  own.own_devices = {"6", "7"};
  own.options.variables = {{"CUDA_VISIBLE_DEVICES", "6,7"}, {"A", "1"}};
  auto env = variables(plan_workers(own, second_node())[1]);
  EXPECT_EQ(env["CUDA_VISIBLE_DEVICES"], "7");
  EXPECT_EQ(env["A"], "1");
  own.own_devices.clear();
  EXPECT_EQ(variables(plan_workers(own, second_node())[1])["CUDA_VISIBLE_DEVICES"], "6,7");
}

TEST(WorkerPlan, ThreadsAreThoseOfTheSeatUnlessTheyAreInherited) {
  PlanOptions plan = options();
  EXPECT_FALSE(variables(plan_workers(plan, second_node())[0]).contains("OMP_NUM_THREADS"));
  plan.seats = {{.cpus = {}, .cores = 4, .threads = 4, .gpu = {}, .why = ""},
                {.cpus = {}, .cores = 1, .threads = 1, .gpu = {}, .why = ""}};
  EXPECT_EQ(variables(plan_workers(plan, second_node())[0])["OMP_NUM_THREADS"], "4");
  EXPECT_EQ(variables(plan_workers(plan, second_node())[1])["OMP_NUM_THREADS"], "1");
  plan.inherits_omp_threads = true;
  EXPECT_FALSE(variables(plan_workers(plan, second_node())[0]).contains("OMP_NUM_THREADS"));
}

TEST(WorkerPlan, AWorkerHasTheCpusOfItsSeat) {
  PlanOptions plan = options();
  plan.seats.resize(2);
  plan.seats[1].cpus = {2, 3};
  EXPECT_EQ(plan_workers(plan, second_node())[0].cpus, CpuSet{});
  EXPECT_EQ(plan_workers(plan, second_node())[1].cpus, (CpuSet{2, 3}));
}

TEST(WorkerPlan, TellsRank0WhereItHasToServeTheStoreItself) {
  PlanOptions own_store = options();
  EXPECT_EQ(variables(plan_workers(own_store, second_node())[0])["TORCHELASTIC_USE_AGENT_STORE"],
            "True");
  own_store.options.worker_store = WorkerStore::kRank0;
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
