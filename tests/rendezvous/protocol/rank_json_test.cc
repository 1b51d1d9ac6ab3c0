#include "rendezvous/protocol/rank_json.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

namespace ddprun {
namespace {

using nlohmann::json;

TEST(RankJson, ARankThatReportsNothingHasOnlyItsPlace) {
  EXPECT_EQ(
      rank_json({.rank = Rank(3), .local_rank = LocalRank(1), .state = "running"}, {.host = "n"}),
      json({{"rank", 3}, {"local_rank", 1}, {"state", "running"}, {"host", "n"}, {"restarts", 0}}));
}

TEST(RankJson, HasEveryFieldThatIsKnown) {
  const RankRow row{.rank = Rank(3),
                    .local_rank = LocalRank(1),
                    .pid = 4711,
                    .state = "running",
                    .step = 98,
                    .total_steps = 1000,
                    .steps_per_second = 12.5,
                    .collective = "all_reduce 4711",
                    .waiting_s = 0.25,
                    .cpu_percent = 99.5,
                    .memory_bytes = 1 << 30,
                    .gpu_percent = 37,
                    .gpu_memory_bytes = std::int64_t{1} << 36,
                    .gpu_own_memory_bytes = std::int64_t{1} << 35,
                    .step_percent = StepShares{.data = 62.04,
                                               .forward = 10,
                                               .backward = 17.5,
                                               .communication = 0.4,
                                               .checkpoint = 1},
                    .slow = "why"};
  EXPECT_EQ(rank_json(row, {.host = "n", .node = NodeRank(2), .restarts = 1, .foremost_step = 100}),
            json({{"rank", 3},
                  {"local_rank", 1},
                  {"pid", 4711},
                  {"state", "running"},
                  {"step", 98},
                  {"total_steps", 1000},
                  {"left_s", 72},
                  {"steps_per_second", 12.5},
                  {"lag", 2},
                  {"collective", "all_reduce 4711"},
                  {"waiting_s", 0.25},
                  {"cpu_percent", 99.5},
                  {"memory_bytes", 1 << 30},
                  {"gpu_percent", 37.0},
                  {"gpu_memory_bytes", std::int64_t{1} << 36},
                  {"gpu_own_memory_bytes", std::int64_t{1} << 35},
                  {"step_percent",
                   {{"data", 62.04},
                    {"forward", 10.0},
                    {"backward", 17.5},
                    {"communication", 0.4},
                    {"checkpoint", 1.0}}},
                  {"limits", "data 62 %, backward 18 %, forward 10 %, other 9 %, checkpoint 1 %"},
                  {"slow", "why"},
                  {"host", "n"},
                  {"node", 2},
                  {"restarts", 1}}));
}

TEST(RankJson, OnlyARankThatRunsHasATimeThatIsLeft) {
  RankRow row{.state = "running", .step = 1, .total_steps = 9, .steps_per_second = 2.0};
  EXPECT_EQ(rank_json(row, {})["left_s"], 4);
  row.state = "stopped";
  EXPECT_FALSE(rank_json(row, {}).contains("left_s"));
}

TEST(RankJson, LimitsAreTheSharesOfAStepFromTheLargest) {
  const auto limits = [](const StepShares& shares) {
    const json row = rank_json({.state = "running", .step_percent = shares}, {});
    return row.value("limits", "none");
  };
  EXPECT_EQ(limits({.forward = 20, .backward = 40, .communication = 40}),
            "backward 40 %, communication 40 %, forward 20 %");
  EXPECT_EQ(limits({.forward = 20, .backward = 30}), "other 50 %, backward 30 %, forward 20 %")
      << "where no loader tells, data is a part of the rest";
  EXPECT_EQ(limits({.data = 100.0}), "data 100 %");
  // An agent may send any number.
  EXPECT_EQ(limits({.data = -1e300, .forward = 2e300, .backward = -5}), "none");
}

TEST(RankJson, StepsMayBeAnyNumbers) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  constexpr std::int64_t kLeast = std::numeric_limits<std::int64_t>::min();
  const RankRow row{.state = "running", .step = kLeast};
  EXPECT_EQ(rank_json(row, {.foremost_step = kMost})["lag"],
            std::numeric_limits<std::uint64_t>::max());
  EXPECT_EQ(foremost_step({{.state = "", .step = kLeast}, {.state = ""}}), kLeast);
  EXPECT_EQ(foremost_step({{.state = ""}}), std::nullopt);
}

}  // namespace
}  // namespace ddprun
