#include "rendezvous/http/status_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/hello_of.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

using Json = nlohmann::json;
using std::chrono::seconds;

class StatusPageTest : public testing::Test {
 protected:
  void join(std::uint64_t connection, const std::string& job, const std::string& host,
            int nodes = 1, int slots = 1) {
    Hello hello = testing_support::hello_of(job, "agent of " + host, {nodes, nodes});
    hello.job.max_restarts = 3;
    hello.node.host = host;
    hello.node.slots = slots;
    table_.receive({.connection = AgentConnectionId(connection)}, hello, now_.boot);
  }
  void report(std::uint64_t connection, std::vector<RankRow> rows) {
    table_.receive({.connection = AgentConnectionId(connection)},
                   Heartbeat{1, {Generation(0), std::move(rows)}}, now_.boot);
  }
  void pass(Duration time) {
    now_.boot += time;
    now_.calendar += time;
  }
  std::string page() { return status_page(table_, now_); }
  Json seen() { return Json::parse(page()); }

  // 2026-11-21, ten minutes past noon.
  Moment now_{.boot = TimePoint(seconds(1000)),
              .calendar = std::chrono::system_clock::time_point(seconds(1795263000))};
  JobTable table_{ServiceOptions{.host = "service", .service_id = "s"}};
};

TEST_F(StatusPageTest, ShowsJobsNodesAndRanks) {
  join(1, "pair", "node0", 2, 4);
  pass(seconds(2));
  join(2, "pair", "node1", 2, 4);
  pass(seconds(1));
  const Json status = seen();
  EXPECT_EQ(status["host"], "service");
  EXPECT_EQ(status["embedded"], false);
  EXPECT_EQ(status["time"], "2026-11-21T12:10:03.000Z");
  EXPECT_EQ(status["jobs_left_out"], 0);
  ASSERT_EQ(status["jobs"].size(), 1u);
  const Json& job = status["jobs"][0];
  EXPECT_EQ(job["id"], "pair");
  EXPECT_EQ(job["phase"], "running");
  EXPECT_EQ(job["generation"], 0);
  EXPECT_EQ(job["min_nodes"], 2);
  EXPECT_EQ(job["max_nodes"], 2);
  EXPECT_EQ(job["restarts_used"], 0);
  EXPECT_EQ(job["times"]["wall_ms"], 3000);
  EXPECT_FALSE(job["nodes"][0].contains("step"));
  EXPECT_EQ(job["times"]["causes_ms"]["waiting_for_nodes"], 2000);
  EXPECT_EQ(job["max_restarts"], 3);
  EXPECT_FALSE(job.contains("verdict"));
  ASSERT_EQ(job["nodes"].size(), 2u);
  EXPECT_EQ(job["nodes"][1], (Json{{"host", "node1"},
                                   {"slots", 4},
                                   {"connected", true},
                                   {"phase", "idle"},
                                   {"generation", -1},
                                   {"silent_ms", 1000},
                                   {"node_rank", 1},
                                   {"first_rank", 4},
                                   {"last_rank", 7}}));
}

TEST_F(StatusPageTest, SaysWhatIsWrongWithLogFilesWhileItIs) {
  join(1, "job", "node0");
  const auto say = [&](const std::string& trouble) {
    table_.receive(
        {.connection = AgentConnectionId(1)},
        AgentStatus{
            .phase = AgentPhase::kRunning, .generation = Generation(0), .log_trouble = trouble},
        now_.boot);
  };
  say("<b>\nfull");
  EXPECT_EQ(seen()["jobs"][0]["nodes"][0]["log_trouble"], "<b>?full");
  EXPECT_EQ(seen()["jobs"][0]["events"].back()["what"], "node0: <b>?full");
  say("");
  EXPECT_FALSE(seen()["jobs"][0]["nodes"][0].contains("log_trouble"));
}

TEST_F(StatusPageTest, AFullDiskOfAllNodesLeavesNoNodeOut) {
  constexpr int kNodes = 1000;
  const std::string trouble =
      "log files are not written, so output is lost: No space left on device (first /" +
      std::string(150, 'x') + ")";
  for (int i = 1; i <= kNodes; ++i) {
    const auto connection = static_cast<std::uint64_t>(i);
    join(connection, "job", "node" + std::to_string(i), kNodes, 8);
    table_.receive({.connection = AgentConnectionId(connection)},
                   AgentStatus{.phase = AgentPhase::kRunning, .log_trouble = trouble}, now_.boot);
  }
  const Json job = seen()["jobs"][0];
  EXPECT_EQ(job["nodes_left_out"], 0);
  ASSERT_EQ(job["nodes"].size(), std::size_t{kNodes});
  int in_full = 0;
  for (const Json& node : job["nodes"]) {
    const auto text = node.value("log_trouble", "");
    EXPECT_THAT(text, testing::StartsWith("log files are not written"));
    if (text == trouble) ++in_full;
  }
  EXPECT_EQ(in_full, 16);
}

TEST_F(StatusPageTest, EventsHaveTheTimeOfTheCalendarAndTheVerdictIsThere) {
  join(1, "job", "node0");
  pass(std::chrono::milliseconds(1500));
  table_.receive(
      {.connection = AgentConnectionId(1)},
      AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0), .step = 70},
      now_.boot);
  pass(std::chrono::hours(24));
  const Json job = seen()["jobs"][0];
  EXPECT_EQ(job["nodes"][0]["step"], 70);
  EXPECT_EQ(job["phase"], "ended");
  EXPECT_EQ(job["verdict"]["success"], true);
  EXPECT_EQ(job["verdict"]["exit_code"], 0);
  ASSERT_EQ(job["events"].size(), 3u);
  EXPECT_EQ(job["events"][0]["time"], "2026-11-21T12:10:00.000Z");
  EXPECT_EQ(job["events"][2]["time"], "2026-11-21T12:10:01.500Z");
  EXPECT_EQ(job["events"][2]["what"], "job 'job' ended: every worker ended with 0");
}

TEST_F(StatusPageTest, AFailedGenerationIsToldAsInTheReportFile) {
  join(1, "job", "node0");
  WorkerEnd end{.kind = EndKind::kSignaled, .code = 7};
  end.stderr_tail = {"step 3"};
  AgentStatus failed{.phase = AgentPhase::kIdle, .generation = Generation(0)};
  failed.ends = {end};
  table_.receive({.connection = AgentConnectionId(1)}, failed, now_.boot);
  const Json failures = seen()["jobs"][0]["failures"];
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0]["kind"], "signal");
  EXPECT_EQ(failures[0]["time"], "2026-11-21T12:10:00.000Z");
  const Json first = failures[0]["first"][0];
  EXPECT_EQ(first["signal_name"], "SIGBUS");
  EXPECT_EQ(first["stderr"], Json({"step 3"}));
  EXPECT_THAT(first["hint"].get<std::string>(), HasSubstr("/dev/shm"));
}

TEST_F(StatusPageTest, HasWhenEachGenerationBeganAndHowItEnded) {
  join(1, "job", "node0", 1, 4);
  pass(seconds(60));
  AgentStatus failed{.phase = AgentPhase::kIdle, .generation = Generation(0)};
  failed.ends = {{.kind = EndKind::kSignaled, .code = 7, .host = "node0"}};
  table_.receive({.connection = AgentConnectionId(1)}, failed, now_.boot);
  Json generations = seen()["jobs"][0]["generations"];
  ASSERT_EQ(generations.size(), 2u);
  EXPECT_THAT(generations[0]["what"].get<std::string>(), HasSubstr("SIGBUS"));
  generations[0].erase("what");
  EXPECT_EQ(generations[0], (Json{{"number", 0},
                                  {"nodes", 1},
                                  {"ranks", 4},
                                  {"since", "2026-11-21T12:10:00.000Z"},
                                  {"until", "2026-11-21T12:11:00.000Z"},
                                  {"end", "failed"}}));
  EXPECT_EQ(
      generations[1],
      (Json{{"number", 1}, {"nodes", 1}, {"ranks", 4}, {"since", "2026-11-21T12:11:00.000Z"}}));
}

TEST_F(StatusPageTest, AJobIsBoundedWhateverItsWorkersHaveSaid) {
  join(1, "job", "node0", 1, 64);
  for (int generation = 0; generation < 4; ++generation) {
    AgentStatus status{.phase = AgentPhase::kRunning, .generation = Generation(generation)};
    table_.receive({.connection = AgentConnectionId(1)}, status, now_.boot);
    pass(std::chrono::minutes(1));
    for (int rank = 0; rank < 64; ++rank) {
      WorkerEnd end{.kind = EndKind::kExited, .code = 1, .rank = Rank(rank)};
      end.host = "node0";
      end.message = std::string(kMaxMessageBytes, '\x01');  // JSON needs six bytes for each
      end.stderr_tail.assign(kMaxTailLines, std::string(kMaxTailLineBytes, '\x01'));
      end.frames.assign(kMaxFrames, std::string(kMaxTailLineBytes, '\x01'));
      status.ends.push_back(end);
    }
    status.phase = AgentPhase::kIdle;
    table_.receive({.connection = AgentConnectionId(1)}, status, now_.boot);
  }
  EXPECT_EQ(seen()["jobs"][0]["failures"].size(), 4u);
  EXPECT_EQ(seen()["jobs"][0]["nodes"].size(), 1u);
  EXPECT_LT(page().size(), kMaxJobBytes);
}

TEST_F(StatusPageTest, TellsNothingThatCouldTakeAnAgentsPlace) {
  join(1, "job", "node0");
  EXPECT_THAT(page(), Not(HasSubstr("agent of")));
  EXPECT_THAT(page(), Not(HasSubstr("s-1"))) << "the instance";
}

// --- ranks ---

TEST_F(StatusPageTest, HasTheRanksThatNodesHaveLatelyTold) {
  join(1, "pair", "node0", 2, 2);
  join(2, "pair", "node1", 2, 2);
  EXPECT_EQ(seen()["jobs"][0]["ranks"], Json::array()) << "no node has told any";
  EXPECT_EQ(seen()["jobs"][0]["ranks_left_out"], 0);
  report(2, {{.rank = Rank(2), .state = "running", .step = 90},
             {.rank = Rank(3), .state = "stopped"}});
  report(1, {{.rank = Rank(0), .state = "running", .step = 100}});
  const Json ranks = seen()["jobs"][0]["ranks"];
  ASSERT_EQ(ranks.size(), 3u);
  EXPECT_EQ(ranks[0]["rank"], 0);
  EXPECT_EQ(ranks[0]["lag"], 0);
  EXPECT_EQ(ranks[1]["lag"], 10) << "behind a rank of another node";
  EXPECT_EQ(ranks[1]["host"], "node1");
  EXPECT_EQ(ranks[1]["node"], 1);
  EXPECT_FALSE(ranks[2].contains("lag"));
  pass(Membership::kRanksLast);
  report(1, {{.rank = Rank(0), .state = "running"}});
  pass(seconds(1));
  EXPECT_EQ(seen()["jobs"][0]["ranks"].size(), 1u) << "node 1 has told none for long";
  table_.disconnected(AgentConnectionId(1), now_.boot);
  EXPECT_EQ(seen()["jobs"][0]["ranks"], Json::array());
}

TEST_F(StatusPageTest, TextsOfRanksAreOnlyText) {
  join(1, "job", "node0");
  report(1, {{.rank = Rank(0), .state = "\xff\"},{", .collective = "<b>\n\x01"}});
  const Json ranks = seen()["jobs"][0]["ranks"];
  ASSERT_EQ(ranks.size(), 1u);
  EXPECT_EQ(ranks[0]["state"], "\uFFFD\"},{");
  EXPECT_EQ(ranks[0]["collective"], "<b>\n\x01");
}

TEST_F(StatusPageTest, RanksLeaveNoJobOutAndAreBounded) {
  constexpr std::size_t kJobs = 8;
  for (std::uint64_t job = 1; job <= kJobs; ++job) {
    join(job, std::to_string(job), "node0", 1, 1000);
    std::vector<RankRow> rows;
    for (int rank = 0; rank < 1000; ++rank) {
      rows.push_back({.rank = Rank(rank), .state = "running", .collective = std::string(100, 'x')});
    }
    report(job, std::move(rows));
  }
  EXPECT_LT(page().size(), kMaxStatusBytes);
  const Json status = seen();
  ASSERT_EQ(status["jobs"].size(), kJobs);
  EXPECT_EQ(status["jobs"][0]["ranks"].size(), 1000u);
  const Json& last = status["jobs"][kJobs - 1];
  EXPECT_EQ(last["ranks"].size() + last["ranks_left_out"].get<std::size_t>(), 1000u);
  EXPECT_GT(last["ranks_left_out"], 0);
  const Json small = Json::parse(status_page(table_, now_, {.max_bytes = kMaxPageBytes}));
  EXPECT_EQ(small["jobs"].size(), kJobs);
  EXPECT_EQ(Json::parse(status_page(table_, now_, {.only = "3"}))["jobs"][0]["ranks"].size(),
            1000u);
}

// --- names that clients choose ---

TEST_F(StatusPageTest, IsJsonWhateverNamesAre) {
  join(1, "a\"b\\\n\xff", "h\xff\"\x01");
  EXPECT_EQ(seen()["jobs"][0]["id"], "a\"b\\\n\uFFFD");
}

TEST_F(StatusPageTest, IsBoundedHoweverManyJobsThereAre) {
  constexpr int kJobs = 3000;
  const std::string name(kMaxNameBytes - 10, '\x01');  // JSON needs six bytes for each
  for (int i = 0; i < kJobs; ++i) {
    join(static_cast<std::uint64_t>(i) + 1, std::to_string(i) + name, std::to_string(i) + name);
  }
  EXPECT_LT(page().size(), kMaxStatusBytes);
  const Json status = seen();
  EXPECT_GT(status["jobs"].size(), 20u);
  EXPECT_EQ(status["jobs"].size() + status["jobs_left_out"].get<std::size_t>(), std::size_t{kJobs});
}

TEST_F(StatusPageTest, AJobIsBoundedHoweverManyNodesItHas) {
  constexpr int kNodes = 3000;
  join(1, "small", "node0");
  for (int i = 0; i < kNodes; ++i) {
    join(static_cast<std::uint64_t>(i) + 2, "large", "node" + std::to_string(i), kNodes + 1);
  }
  const Json status = seen();
  ASSERT_EQ(status["jobs"].size(), 2u);
  const Json& job = status["jobs"][0];
  EXPECT_GT(job["nodes"].size(), 1000u);
  EXPECT_GT(job["nodes_left_out"], 0);
  EXPECT_EQ(job["nodes"].size() + job["nodes_left_out"].get<std::size_t>(), std::size_t{kNodes});
}

}  // namespace
}  // namespace ddprun
