#include "launcher/cluster/core/detector.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

EnvLookup lookup_in(const Variables& variables) {
  return [variables](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(name);
    if (found == variables.end()) return std::nullopt;
    return found->second;
  };
}

constexpr NodeVariables kAll{"Test job", "SIGN", "NODES", "INDEX", "HOST", "PORT", "ID"};
const Variables kNode{{"SIGN", "yes"}, {"NODES", "4"},    {"INDEX", "1"},
                      {"HOST", "n0"},  {"PORT", "23456"}, {"ID", "7"}};

std::string refusal(const Variables& variables) {
  const auto plan = plan_from(kAll, lookup_in(variables));
  EXPECT_FALSE(plan);
  return plan ? "" : plan.error().message();
}

TEST(PlanFrom, TakesEachFactFromItsVariable) {
  const auto plan = plan_from(kAll, lookup_in(kNode));
  ASSERT_TRUE(plan && *plan);
  EXPECT_EQ((*plan)->name, "Test job 7");
  EXPECT_EQ((*plan)->nodes, 4);
  EXPECT_EQ((*plan)->node_rank, 1);
  EXPECT_EQ(to_text((*plan)->endpoint), "n0:23456");
  EXPECT_EQ((*plan)->job_id, "7");
  EXPECT_EQ((*plan)->workers, std::nullopt);
}

TEST(PlanFrom, FindsNothingWithoutTheSignOrInAWorker) {
  const auto without_sign = plan_from(kAll, lookup_in(without(kNode, "SIGN")));
  EXPECT_TRUE(without_sign && !*without_sign);
  const auto in_worker = plan_from(kAll, lookup_in(with(kNode, "TORCHELASTIC_RUN_ID", "7")));
  EXPECT_TRUE(in_worker && !*in_worker);
}

TEST(PlanFrom, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_EQ(refusal(without(kNode, "HOST")),
            "HOST: not set, although SIGN is set (--no-detect: take nothing from the scheduler)");
  EXPECT_EQ(refusal(with(kNode, "NODES", "0")),
            "NODES: invalid value '0' (expected a number from 1)");
  EXPECT_EQ(refusal(with(kNode, "INDEX", "4")),
            "INDEX: invalid value '4' (expected less than 4, as NODES says)");
  EXPECT_EQ(refusal(with(kNode, "INDEX", "-1")), "INDEX: invalid value '-1' (expected a number)");
  EXPECT_THAT(refusal(with(kNode, "PORT", "65536")), HasSubstr("PORT: invalid value '65536'"));
  EXPECT_THAT(refusal(with(kNode, "NODES", "4294967297")), HasSubstr("NODES: invalid value"));
}

TEST(PortOf, IsTheSameForAJobAndInTheRange) {
  EXPECT_EQ(port_of("job-1"), port_of("job-1"));
  EXPECT_NE(port_of("job-1"), port_of("job-2"));
  for (const char* job : {"", "1", "prterun-node18-12345@1", "sky-2023-07-06_myclus_1"}) {
    EXPECT_GE(port_of(job), 20000) << job;
    EXPECT_LT(port_of(job), 30000) << job;
  }
}

TEST(MeetNear, GivesTheNextPortsBelowThoseOfOutgoingConnections) {
  ClusterPlan plan;
  meet_near(plan, "n17", 29999);
  EXPECT_EQ(to_text(plan.endpoint), "n17:29999");
  EXPECT_EQ(plan.next_ports,
            (std::vector<std::uint16_t>{30000, 30001, 30002, 30003, 30004, 30005, 30006}));
}

TEST(ListedGpus, CountsAListAndNoWords) {
  const auto count = [](const std::string& text) {
    return listed_gpus(lookup_in({{"GPUS", text}}), "GPUS");
  };
  EXPECT_EQ(count("0,1,2"), 3);
  EXPECT_EQ(count("GPU-6da1,GPU-07c3"), 2);
  for (const char* word : {"", "all", "none", "void", "-1"}) EXPECT_EQ(count(word), std::nullopt);
  EXPECT_EQ(listed_gpus(lookup_in({}), "GPUS"), std::nullopt);
}

}  // namespace
}  // namespace ddprun
