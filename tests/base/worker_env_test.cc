#include "base/worker_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "base/signal_names.h"
#include "tests/support/docs_table.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

using Variables = std::map<std::string, std::string, std::less<>>;

EnvLookup lookup_in(const Variables& variables) {
  return [&variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

WorkerEnv example() {
  WorkerEnv env;
  env.rank = Rank(3);
  env.world_size = 4;
  env.local_rank = LocalRank(1);
  env.local_world_size = 2;
  env.node_rank = NodeRank(1);
  env.node_count = 2;
  env.master_addr = "10.0.0.7";
  env.master_port = 40123;
  env.restart_count = 2;
  env.max_restarts = 5;
  env.run_id = "job";
  env.error_file = "/tmp/e.json";
  env.nccl_async_error_handling = "1";
  env.omp_num_threads = "1";
  env.cuda_visible_devices = "3";
  env.generation = Generation(6);
  env.submission = "service-1";
  env.lease = std::chrono::milliseconds(7500);
  env.ports = {29500, 29599};
  env.checkpoint_signal = 10;
  env.page_file = "/proc/1/fd/7";
  env.page_offset = 69632;
  return env;
}

TEST(WorkerEnv, EveryVariableOfTheListIsWrittenOnceAndInItsOrder) {
  const auto variables = variables_of(example());
  ASSERT_EQ(variables.size(), worker_variables().size());
  for (std::size_t i = 0; i < variables.size(); ++i) {
    EXPECT_EQ(variables[i].first, worker_variables()[i]);
  }
}

TEST(WorkerEnv, TheWorkerReadsBackWhatTheLauncherWrote) {
  Variables variables;
  for (const auto& [name, value] : variables_of(example())) variables[name] = value;
  const auto read = read_worker_env(lookup_in(variables));
  ASSERT_TRUE(read && *read) << (read ? "no launcher seen" : read.error().message());
  EXPECT_EQ(variables_of(**read).front(), variables_of(example()).front());
  EXPECT_EQ((*read)->rank, Rank(3));
  EXPECT_EQ((*read)->ports, (PortRange{29500, 29599}));
  EXPECT_EQ((*read)->checkpoint_signal, 10);
  EXPECT_EQ((*read)->page_file, "/proc/1/fd/7");
  EXPECT_EQ((*read)->page_offset, 69632u);
  EXPECT_EQ((*read)->lease, std::chrono::milliseconds(7500));
  EXPECT_EQ((*read)->node_rank, NodeRank(1));
  EXPECT_EQ((*read)->node_count, 2);
  EXPECT_EQ((*read)->local_world_size, 2);
  EXPECT_EQ((*read)->master_addr, "10.0.0.7");
  EXPECT_EQ((*read)->master_port, 40123);
  EXPECT_EQ((*read)->restart_count, 2);
  EXPECT_EQ((*read)->generation, Generation(6));
  EXPECT_EQ((*read)->run_id, "job");
  EXPECT_EQ((*read)->submission, "service-1");
}

TEST(WorkerEnv, WithoutALauncherThereIsNone) {
  const auto read = read_worker_env(lookup_in({{"PATH", "/bin"}}));
  ASSERT_TRUE(read);
  EXPECT_FALSE(read->has_value());
}

TEST(WorkerEnv, FillsWhatAHandMadeEnvironmentLeavesOut) {
  const Variables variables{{"RANK", "1"}, {"WORLD_SIZE", "2"}};
  const auto read = read_worker_env(lookup_in(variables));
  ASSERT_TRUE(read && *read);
  EXPECT_EQ((*read)->local_rank, LocalRank(1));
  EXPECT_EQ((*read)->local_world_size, 2);
  EXPECT_EQ((*read)->node_count, 1);
  EXPECT_EQ((*read)->master_addr, "127.0.0.1");
  EXPECT_EQ((*read)->master_port, 29500);
  EXPECT_EQ((*read)->lease, kDefaultLease);
  EXPECT_EQ((*read)->run_id, kDefaultJobId);
  EXPECT_EQ((*read)->role, kDefaultRole);
}

struct BadVariables {
  Variables variables;
  std::string named;
};

TEST(WorkerEnv, NamesTheVariableThatIsWrong) {
  const std::vector<BadVariables> cases{
      {{{"RANK", "0"}}, "WORLD_SIZE"},
      {{{"WORLD_SIZE", "2"}}, "RANK"},
      {{{"RANK", "2"}, {"WORLD_SIZE", "2"}},
       "RANK: invalid value '2' (expected an integer from 0 to 1)"},
      {{{"RANK", "1"}, {"WORLD_SIZE", "1"}}, "RANK: invalid value '1' (expected 0)"},
      {{{"RANK", "-1"}, {"WORLD_SIZE", "2"}}, "RANK"},
      {{{"RANK", "0x1"}, {"WORLD_SIZE", "2"}}, "invalid value '0x1' (expected an integer"},
      {{{"RANK", ""}, {"WORLD_SIZE", "2"}}, "RANK"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "99999999999"}}, "WORLD_SIZE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}}, "MASTER_PORT"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_WORLD_SIZE", "3"}}, "LOCAL_WORLD_SIZE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"GROUP_RANK", "1"}}, "GROUP_RANK"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"DDPRUN_PORT_RANGE", "x"}}, "DDPRUN_PORT_RANGE"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"DDPRUN_LEASE_MS", "0"}}, "DDPRUN_LEASE_MS"},
  };
  for (const BadVariables& bad : cases) {
    const auto read = read_worker_env(lookup_in(bad.variables));
    ASSERT_FALSE(read) << bad.named;
    EXPECT_EQ(read.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(read.error().message(), HasSubstr(bad.named));
  }
}

TEST(WorkerEnv, TheDocumentationListsExactlyTheVariablesOfTheList) {
  std::vector<testing_support::TableRow> listed;
  for (const std::string_view name : worker_variables())
    listed.push_back({"`" + std::string(name) + "`"});
  EXPECT_EQ(testing_support::table_rows("reference/worker_environment.md", {"variable"}), listed);
}

}  // namespace
}  // namespace ddprun
