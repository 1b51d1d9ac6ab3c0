#include "rendezvous/protocol/verdict_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

namespace ddprun {
namespace {

using testing::HasSubstr;
using Json = nlohmann::ordered_json;

WorkerEnd worker(int rank, EndKind kind, int code) {
  WorkerEnd end{.kind = kind, .code = code, .rank = Rank(rank), .local_rank = LocalRank(rank)};
  end.host = "node0";
  end.age = std::chrono::seconds(5);
  return end;
}

Json generation_of(std::vector<WorkerEnd> ends) {
  Verdict verdict{.headline = "what happened", .ends = std::move(ends), .more_ends = 3};
  verdict.generation = Generation(4);
  return verdict_json(verdict);
}

TEST(VerdictJson, TellsTheFirstFromItsVictims) {
  WorkerEnd first = worker(2, EndKind::kSignaled, SIGBUS);
  first.core_dumped = true;
  first.stderr_tail = {"step 3", "\xff"};
  WorkerEnd victim = worker(0, EndKind::kExited, 1);
  victim.blames = 2;
  victim.message = "DistError: rank 2 died";
  victim.age = std::chrono::seconds(4);
  WorkerEnd stopped = worker(1, EndKind::kSignaled, SIGTERM);
  stopped.after_stop = true;
  const Json generation = generation_of({first, victim, stopped});
  EXPECT_EQ(generation["generation"], 4);
  EXPECT_EQ(generation["what"], "what happened");
  ASSERT_EQ(generation["first"].size(), 1u);
  const Json one = generation["first"][0];
  EXPECT_EQ(one["kind"], "signal");
  EXPECT_EQ(one["signal_name"], "SIGBUS");
  EXPECT_EQ(one["core_dumped"], true);
  EXPECT_EQ(one["rank"], 2);
  EXPECT_EQ(one["stderr"][0], "step 3");
  EXPECT_THAT(one["hint"].get<std::string>(), HasSubstr("/dev/shm"));
  ASSERT_EQ(generation["victims"].size(), 2u);
  EXPECT_EQ(generation["victims"][0]["kind"], "exception");
  EXPECT_EQ(generation["victims"][0]["victim_of_rank"], 2);
  EXPECT_EQ(generation["victims"][0]["seconds_after_first"], 1.0);
  EXPECT_EQ(generation["victims"][1]["stopped_by_ddprun"], true);
  EXPECT_EQ(generation["victims_not_listed"], 3);
  EXPECT_FALSE(generation.contains("blamed"));
}

TEST(VerdictJson, WhomTheFirstBlamesIsNotAmongItsVictims) {
  WorkerEnd first = worker(0, EndKind::kExited, 1);
  first.blames = 1;
  WorkerEnd stopped = worker(1, EndKind::kSignaled, SIGTERM);
  stopped.after_stop = true;
  const Json generation = generation_of({first, stopped});
  EXPECT_EQ(generation["victims"].size(), 0u);
  ASSERT_EQ(generation["blamed"].size(), 1u);
  EXPECT_EQ(generation["blamed"][0]["rank"], 1);
}

TEST(VerdictJson, AllThatCouldBeFirstAreFirst) {
  WorkerEnd other = worker(1, EndKind::kExited, 1);
  other.node_rank = NodeRank(1);
  const Json generation = generation_of({worker(0, EndKind::kExited, 1), other});
  ASSERT_EQ(generation["first"].size(), 2u);
  EXPECT_EQ(generation["first"][1]["node_rank"], 1);
  EXPECT_EQ(generation["victims"].size(), 0u);
}

}  // namespace
}  // namespace ddprun
