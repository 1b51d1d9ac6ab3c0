#include "worker_lib/spawn/core/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

namespace ddprun {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Key;
using testing::Not;
using testing::Pair;
using testing::UnorderedElementsAre;

EnvLookup lookup_in(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

constexpr int kCpus = 8;
SpawnPlace place_of(int ranks) {
  return {.ranks = ranks, .store = {.host = "127.0.0.1", .port = 4711}, .cpus = kCpus};
}

TEST(SpawnPlan, AProcessWithOneThreadAndNoGpuCanBeForked) { EXPECT_TRUE(check_can_fork({})); }

TEST(SpawnPlan, ThreadsAreInTheWayAndAreNamed) {
  const Result<void> one = check_can_fork({.other_threads = {"loader"}});
  ASSERT_FALSE(one);
  EXPECT_EQ(one.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(one.error().message(),
              AllOf(HasSubstr("1 more thread (loader)"), HasSubstr("Call spawn() before")));
  EXPECT_THAT(check_can_fork({.other_threads = {"a", "b", "c", "d", "e"}}).error().message(),
              HasSubstr("5 more threads (a, b, c, d, ...)"));
}

TEST(SpawnPlan, CudaIsInTheWayWhateverElseIs) {
  EXPECT_THAT(
      check_can_fork({.other_threads = {"cuda-EvtHandlr"}, .has_cuda = true}).error().message(),
      AllOf(HasSubstr("uses CUDA already"), HasSubstr("device_count()")));
}

TEST(SpawnPlan, RanksReadBackTheirPlaceAndTheStoreThatIsHostedForThem) {
  const RankVariables variables = variables_of_rank(Rank(2), place_of(3), lookup_in({}));
  EXPECT_TRUE(variables.unset.empty());
  const std::map<std::string, std::string> found(variables.set.begin(), variables.set.end());
  const auto read = read_worker_env(lookup_in(found));
  ASSERT_TRUE(read && *read);
  const WorkerEnv& env = **read;
  EXPECT_EQ(env.rank, Rank(2));
  EXPECT_EQ(env.world_size, 3);
  EXPECT_EQ(env.local_rank, LocalRank(2));
  EXPECT_EQ(env.local_world_size, 3);
  EXPECT_EQ(env.node_count, 1);
  EXPECT_EQ(to_text(store_address(env)), "127.0.0.1:4711");
  EXPECT_TRUE(env.agent_store);
}

TEST(SpawnPlan, RanksShareTheCpusUnlessToldOtherwise) {
  for (const auto& [ranks, threads] : {std::pair(1, 8), {2, 4}, {3, 2}, {8, 1}, {9, 1}}) {
    EXPECT_EQ(threads_of_rank(place_of(ranks)), threads);
    EXPECT_THAT(variables_of_rank(Rank(0), place_of(ranks), lookup_in({})).set,
                Contains(Pair("OMP_NUM_THREADS", std::to_string(threads))));
  }
  const RankVariables said =
      variables_of_rank(Rank(0), place_of(2), lookup_in({{"OMP_NUM_THREADS", "3"}}));
  EXPECT_THAT(said.set, Not(Contains(Key("OMP_NUM_THREADS"))));
  EXPECT_TRUE(said.unset.empty());
}

TEST(SpawnPlan, WhatALauncherToldItsWorkerIsReplacedOrTakenAway) {
  const RankVariables variables =
      variables_of_rank(Rank(1), place_of(2),
                        lookup_in({{"RANK", "7"},
                                   {"GROUP_RANK", "3"},
                                   {"DDPRUN_GENERATION", "5"},
                                   {"DDPRUN_CHECKPOINT_SIGNAL", "10"},
                                   {"DDPRUN_WORKER_PAGE", "64@/memory"},
                                   {"TORCHELASTIC_ERROR_FILE", "/errors/7"}}));
  for (const auto& [name, value] :
       std::map<std::string, std::string>{{"RANK", "1"},
                                          {"GROUP_RANK", "0"},
                                          {"DDPRUN_GENERATION", "0"},
                                          {"TORCHELASTIC_ERROR_FILE", ""}}) {
    EXPECT_THAT(variables.set, Contains(Pair(name, value)));
  }
  EXPECT_THAT(variables.unset,
              UnorderedElementsAre("DDPRUN_CHECKPOINT_SIGNAL", "DDPRUN_WORKER_PAGE"));
}

TEST(SpawnPlan, WhatTellsOfTheHostIsKept) {
  const RankVariables variables =
      variables_of_rank(Rank(0), place_of(1),
                        lookup_in({{"CUDA_VISIBLE_DEVICES", "1,3"},
                                   {"DDPRUN_LEASE_MS", "9000"},
                                   {"DDPRUN_PORT_RANGE", "5000-5009"}}));
  EXPECT_TRUE(variables.unset.empty());
  EXPECT_THAT(variables.set, Not(Contains(Key("DDPRUN_LEASE_MS"))));
}

}  // namespace
}  // namespace ddprun
