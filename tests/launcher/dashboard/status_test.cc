#include "launcher/dashboard/status.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Json = nlohmann::json;

const std::chrono::system_clock::time_point kWhen{std::chrono::hours(24)};

TEST(DashboardStatus, IsAStatusPageOfTheOneJob) {
  DashboardStatus status;
  EXPECT_FALSE(status.has_job());
  ASSERT_TRUE(status.take(Json::parse(R"({"agents": [],
      "job": {"id": "a <b>", "phase": "running", "generation": 2}})"),
                          kWhen));
  EXPECT_EQ(status.job(), "a <b>");
  EXPECT_EQ(status.generation(), 2);
  EXPECT_FALSE(status.is_over());
  const Json page = Json::parse(status.text());
  EXPECT_EQ(page.at("time"), "1970-01-02T00:00:00.000Z");
  EXPECT_EQ(page.at("jobs").size(), 1u);
  EXPECT_EQ(page.at("jobs")[0].at("id"), "a <b>");
  EXPECT_EQ(page.at("jobs_left_out"), 0);
  EXPECT_FALSE(page.contains("trouble"));
}

TEST(DashboardStatus, HasTheRanksThatAgentsKnow) {
  DashboardStatus status;
  ASSERT_TRUE(status.take(Json::parse(R"({"job": {"id": "a", "phase": "running"}, "agents": [
      {"ranks": [{"rank": 0, "step": 5, "lag": 0}, {"rank": 1}]},
      {"ranks": [{"rank": 2, "step": 9, "lag": 0}]}, {"silent": "x"}]})"),
                          kWhen));
  const Json ranks = Json::parse(status.text()).at("jobs")[0].at("ranks");
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[0].at("lag"), 4) << "behind a rank of another agent";
  EXPECT_FALSE(ranks[1].contains("lag"));
  ASSERT_TRUE(status.take(Json::parse(R"({"job": {"id": "a", "ranks": [{"rank": 0}, {"rank": 1}]},
      "agents": [{"ranks": [{"rank": 1}]}]})"),
                          kWhen));
  EXPECT_EQ(Json::parse(status.text()).at("jobs")[0].at("ranks").size(), 2u)
      << "this host has a part of the job";
}

TEST(DashboardStatus, AWorkerMayReportAnyStep) {
  DashboardStatus status;
  ASSERT_TRUE(status.take(Json::parse(R"({"job": {"id": "a"}, "agents": [{"ranks": [
      {"step": -9223372036854775808}, {"step": 9223372036854775807}]}]})"),
                          kWhen));
  Json ranks = Json::parse(status.text()).at("jobs")[0].at("ranks");
  EXPECT_EQ(ranks[0].at("lag"), 18446744073709551615u);
  EXPECT_EQ(ranks[1].at("lag"), 0);
  ASSERT_TRUE(status.take(Json::parse(R"({"job": {"id": "a"}, "agents": [{"ranks": [
      {"step": -7}, {"step": -3}]}]})"),
                          kWhen));
  ranks = Json::parse(status.text()).at("jobs")[0].at("ranks");
  EXPECT_EQ(ranks[0].at("lag"), 4);
  EXPECT_EQ(ranks[1].at("lag"), 0);
}

TEST(DashboardStatus, KeepsTheJobWhileNothingNewComes) {
  DashboardStatus status;
  ASSERT_TRUE(status.take(Json::parse(R"({"job": {"id": "a", "phase": "running"}})"), kWhen));
  EXPECT_FALSE(status.take(Json::parse(R"({"agents": [{"job": "a"}]})"), kWhen));
  status.set_trouble("no answer");
  EXPECT_EQ(Json::parse(status.text()).at("trouble"), "no answer");
  EXPECT_EQ(status.job(), "a");
  status.end();
  EXPECT_TRUE(status.is_over());
  EXPECT_EQ(Json::parse(status.text()).at("jobs")[0].at("phase"), "ended");
}

TEST(DashboardStatus, WhatAnotherVersionMeansOtherwiseIsNoJob) {
  DashboardStatus status;
  for (const char* text : {"{}", "[]", "null", R"({"job": 1})", R"({"job": {}})"}) {
    EXPECT_FALSE(status.take(Json::parse(text), kWhen)) << text;
  }
  status.end();
  EXPECT_FALSE(status.is_over());
}

}  // namespace
}  // namespace ddprun
