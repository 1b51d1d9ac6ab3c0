#include "launcher/top/picture.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/concat.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

TEST(Picture, HasTheJobAndItsRanks) {
  const JobView view = view_of(Json::parse(R"({
    "job": {"id": "train", "phase": "running", "generation": 2, "restarts_used": 1,
            "max_restarts": 3, "times": {"what": "goodput 97 %"},
            "failures": [{"what": "older"}, {"what": "rank 0 exited with code 7"}]},
    "agents": [{"workers": [{"rank": 4}], "ranks": [
      {"rank": 4, "local_rank": 0, "node": 1, "host": "node1", "pid": 4711, "state": "running",
       "step": 100, "total_steps": 9, "left_s": 7, "lag": 3,
       "collective": "all_reduce 7", "waiting_s": 1.5, "gpu_own_memory_bytes": 77,
       "limits": "data 62 %"},
      {"rank": 5, "state": "stopped", "step": 103, "steps_per_second": 2.5},
      {"rank": 6, "state": "running", "step": 103, "total_steps": 200, "left_s": 38}]}]})"));
  EXPECT_EQ(view.id, "train");
  EXPECT_EQ(view.phase, "running");
  EXPECT_EQ(view.generation, 2);
  EXPECT_EQ(view.restarts_used, 1);
  EXPECT_EQ(view.goodput, "goodput 97 %");
  EXPECT_EQ(view.last_failure, "rank 0 exited with code 7");
  EXPECT_EQ(view.outcome, "");
  ASSERT_EQ(view.ranks.size(), 3u);
  EXPECT_EQ(view.ranks[0].rank, 4);
  EXPECT_EQ(view.ranks[0].node, 1);
  EXPECT_EQ(view.ranks[0].host, "node1");
  EXPECT_EQ(view.ranks[0].pid, 4711);
  EXPECT_EQ(view.ranks[0].lag, 3);
  EXPECT_EQ(view.ranks[0].collective, "all_reduce 7");
  EXPECT_EQ(view.ranks[0].waiting_s, 1.5);
  EXPECT_EQ(view.ranks[0].gpu_own_memory_bytes, 77);
  EXPECT_EQ(view.ranks[0].limits, "data 62 %");
  EXPECT_EQ(view.ranks[1].state, "stopped");
  EXPECT_EQ(view.progress.step, 103) << "of the foremost ranks";
  EXPECT_EQ(view.progress.steps_per_second, 2.5);
  EXPECT_EQ(view.progress.total_steps, 200);
  EXPECT_EQ(view.progress.left, std::chrono::seconds(38));
}

TEST(Picture, AWorkerMayReportAnyStep) {
  const JobView view = view_of(Json::parse(R"({"agents": [{"ranks": [
      {"step": -9223372036854775808}, {"step": 9223372036854775807}]}]})"));
  ASSERT_EQ(view.ranks.size(), 2u);
  EXPECT_EQ(view.ranks[0].lag, std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(view.ranks[1].lag, 0);
}

TEST(Picture, OnlyAJobThatRunsHasATimeThatIsLeft) {
  const auto left = [](const std::string& phase) {
    return view_of(Json::parse(R"({"job": {"phase": ")" + phase + R"(", "ranks": [
        {"rank": 0, "state": "running", "step": 1, "total_steps": 9, "left_s": 5}]}})"))
        .progress.left;
  };
  EXPECT_EQ(left("running"), std::chrono::seconds(5));
  EXPECT_EQ(left("forming"), std::nullopt);
  EXPECT_EQ(view_of(Json::parse(R"({"agents": [{"phase": "running", "ranks": [
                {"step": 1, "left_s": -4}]}]})"))
                .progress.left,
            Duration(0))
      << "no time is negative, whatever another version says";
}

TEST(Picture, SaysWhyTheLastGenerationFailed) {
  const auto last_failure = [](const char* first) {
    return view_of(
               Json::parse(concat(R"({"job": {"id": "j", "failures": [{"what": )",
                                  R"("rank 0 exited with code 1: bad", "first": )", first, "}]}}")))
        .last_failure;
  };
  const std::string what = "rank 0 exited with code 1: bad";
  EXPECT_EQ(last_failure(R"([{"message": "out of memory\nat line 7"}])"), what + ": out of memory");
  EXPECT_EQ(last_failure(R"([{"stderr": ["Traceback", "ValueError: 7"]}])"),
            what + ": ValueError: 7");
  EXPECT_EQ(last_failure(R"([{"message": "bad", "stderr": ["x"]}])"), what) << "it has that";
  for (const char* nothing : {"[]", "[7]", "7", R"([{"stderr": []}])", R"([{"stderr": [7]}])"}) {
    EXPECT_EQ(last_failure(nothing), what) << nothing;
  }
}

TEST(Picture, SaysWhatIsWrongWithLogFilesAndOnHowManyNodes) {
  const auto trouble = [](const char* nodes) {
    return view_of(Json::parse(concat(R"({"job": {"nodes": )", nodes, "}}"))).log_trouble;
  };
  EXPECT_EQ(trouble(R"([{"host": "a"}, 7, {"host": "b", "log_trouble": 7}])"), "");
  EXPECT_EQ(trouble(R"([{"host": "a"}, {"host": "b", "log_trouble": "full"}])"), "b: full");
  EXPECT_EQ(trouble(R"([{"host": "b", "log_trouble": "full"}, {"host": "c", "log_trouble": "x"}])"),
            "b: full; also on 1 other node");
}

TEST(Picture, NamesTheGenerationThatFailedAndSinceWhenTheNewestRuns) {
  const auto view = [](const char* phase, const char* age) {
    return view_of(Json::parse(concat(R"({"job": {"generation": 8, "phase": ")", phase,
                                      R"(", "generation_since_ms_ago": )", age,
                                      R"(, "failures": [{"generation": 7, "what": "bad"}]}})")));
  };
  EXPECT_EQ(view("running", "2100").last_failure, "generation 7: bad");
  EXPECT_EQ(view("running", "2100").generation_age, std::chrono::milliseconds(2100));
  EXPECT_EQ(view("running", "9223372036854775807").generation_age, kLongestTimeout);
  EXPECT_EQ(view("running", "-1").generation_age, std::nullopt);
  EXPECT_EQ(view("forming", "2100").generation_age, std::nullopt);
}

TEST(Picture, HasTheLongerListOfRanks) {
  const auto ranks = [](const char* text) { return view_of(Json::parse(text)).ranks; };
  EXPECT_EQ(ranks(R"({"job": {"id": "j", "ranks": [{"rank": 0}, {"rank": 1}]},
                      "agents": [{"ranks": [{"rank": 1, "pid": 7}]}]})")
                .size(),
            2u)
      << "of all nodes";
  EXPECT_EQ(ranks(R"({"job": {"id": "j", "ranks": [{"rank": 1}]},
                      "agents": [{"ranks": [{"rank": 1, "pid": 7}]}]})")
                .at(0)
                .pid,
            7)
      << "the agent's is newer";
  EXPECT_EQ(ranks(R"({"agents": [{"workers": [{"rank": 3}]}]})").at(0).rank, 3) << "an older agent";
}

TEST(Picture, WithoutTheServiceItIsWhatTheNodeKnows) {
  const JobView view = view_of(Json::parse(R"({"service_silent": "it is gone",
    "agents": [{"job": "train", "phase": "running", "generation": 0, "workers": []}]})"));
  EXPECT_EQ(view.id, "train");
  EXPECT_EQ(view.phase, "running, as known to this node");
}

TEST(Picture, SaysHowTheJobEnded) {
  const JobView view = view_of(Json::parse(
      R"({"job": {"id": "train", "phase": "ended", "generation": -1,
                  "verdict": {"exit_code": 7, "headline": "rank 0 exited with code 7"}}})"));
  EXPECT_EQ(view.outcome, "ended with exit code 7: rank 0 exited with code 7");
  EXPECT_EQ(view.generation, std::nullopt) << "none was formed";
}

TEST(Picture, OtherTypesOfJsonAreIgnored) {
  for (const char* text :
       {"{}", "[]", "null", "7", R"({"job": [], "agents": {}})",
        R"({"job": {"id": 7, "failures": [1], "verdict": "x", "times": []}, "agents": [1, "x"]})",
        R"({"agents": [{"workers": [1, {"rank": "x", "step": 1e300, "cpu_percent": "y"}]}]})"}) {
    EXPECT_EQ(view_of(Json::parse(text)).id, "") << text;
  }
}

}  // namespace
}  // namespace ddprun
