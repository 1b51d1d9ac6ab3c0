#include "rendezvous/http/core/metrics_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "tests/support/docs_table.h"
#include "tests/support/hello_of.h"
#include "tests/support/read_file.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing_support::table_rows;
using testing_support::TableRow;

// ParsedPage: the page, parsed by the rules of Prometheus's text format 0.0.4.
class ParsedPage {
 public:
  explicit ParsedPage(const std::string& page) {
    EXPECT_TRUE(page.ends_with('\n'));
    std::istringstream lines(page);
    for (std::string line; std::getline(lines, line);) take(line);
  }

  // Maps the name and labels, as written on the page, to the value.
  const std::map<std::string, std::string>& samples() const { return samples_; }
  const std::map<std::string, std::string>& types() const { return types_; }
  std::string value(const std::string& series) const {
    const auto found = samples_.find(series);
    return found == samples_.end() ? "none" : found->second;
  }

 private:
  void take(const std::string& line) {
    std::istringstream words(line);
    std::string mark, what, name;
    if (line.starts_with("# ")) {
      words >> mark >> what >> name;
      if (what == "HELP") {
        EXPECT_TRUE(helped_.insert(name).second) << "HELP twice: " << name;
      } else {
        EXPECT_EQ(what, "TYPE");
        EXPECT_TRUE(helped_.contains(name)) << line;
        words >> what;
        EXPECT_TRUE(types_.emplace(name, what).second) << "TYPE twice: " << name;
        EXPECT_EQ(what == "counter", name.ends_with("_total")) << line;
        family_ = name;
      }
      return;
    }
    const std::size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    const std::string series = line.substr(0, space);
    EXPECT_TRUE(samples_.emplace(series, line.substr(space + 1)).second) << "twice: " << series;
    const std::string bare = series.substr(0, series.find('{'));
    const bool of_histogram =
        types_[family_] == "histogram" &&
        (bare == family_ + "_bucket" || bare == family_ + "_sum" || bare == family_ + "_count");
    EXPECT_TRUE(bare == family_ || of_histogram) << line << " stands below " << family_;
  }

  std::set<std::string> helped_;
  std::map<std::string, std::string> types_;
  std::map<std::string, std::string> samples_;
  std::string family_;
};

class MetricsPageTest : public testing::Test {
 protected:
  ServiceOutput hello(std::uint64_t connection, const std::string& job, const std::string& agent,
                      int nodes = 1) {
    Hello hello = testing_support::hello_of(job, agent, {nodes, nodes});
    hello.job.max_restarts = 3;
    hello.node.supports_steps = true;
    return table_.receive({.connection = AgentConnectionId(connection)}, hello, now_);
  }
  void tell_shares(std::uint64_t connection, const StepShares& shares) {
    table_.receive({.connection = AgentConnectionId(connection)},
                   StepReport{.generation = Generation(0), .shares = {{LocalRank(0), shares}}},
                   now_);
  }
  ParsedPage page() { return ParsedPage(metrics_page(table_, figures_, now_)); }

  TimePoint now_ = TimePoint(seconds(1000));
  JobTable table_{ServiceOptions{}};
  Figures figures_;
};

TEST_F(MetricsPageTest, ShowsJobsGenerationsMembersRestartsAndLosses) {
  hello(1, "one", "a");
  hello(2, "two", "b", 2);
  hello(3, "over", "c");
  table_.receive({.connection = AgentConnectionId(3)},
                 AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)}, now_);
  WorkerEnd killed{.kind = EndKind::kSignaled, .code = 9};
  table_.receive(
      {.connection = AgentConnectionId(1)},
      AgentStatus{.phase = AgentPhase::kIdle, .generation = Generation(0), .ends = {killed}}, now_);
  const ParsedPage seen = page();
  EXPECT_EQ(seen.value("ddprun_jobs{phase=\"running\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_jobs{phase=\"forming\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_jobs{phase=\"ended\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_members"), "3");
  EXPECT_EQ(seen.value("ddprun_generations_total"), "3");
  EXPECT_EQ(seen.value("ddprun_restarts_total"), "1");
  EXPECT_EQ(seen.value("ddprun_lease_losses_total"), "0");
  EXPECT_EQ(seen.value("ddprun_job_generation{job=\"one\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_job_generation{job=\"two\"}"), "-1");
  EXPECT_EQ(seen.value("ddprun_job_generation{job=\"over\"}"), "none") << "it has ended";
  EXPECT_EQ(seen.value("ddprun_job_members{job=\"two\"}"), "1");
  now_ += std::chrono::milliseconds(2500);
  const ParsedPage later = page();
  const std::string times = "ddprun_job_time_seconds";
  EXPECT_EQ(later.value(times + "{job=\"two\",cause=\"waiting_for_nodes\"}"), "2.5");
  EXPECT_EQ(later.value(times + "{job=\"one\",cause=\"recovery\"}"), "0");
  EXPECT_EQ(seen.value("ddprun_job_restarts_used{job=\"one\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_job_restarts_allowed{job=\"one\"}"), "3");
  EXPECT_EQ(seen.value("ddprun_jobs_not_listed"), "0");
  EXPECT_EQ(seen.value("ddprun_jobs_ended_total{outcome=\"success\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_jobs_ended_total{outcome=\"failure\"}"), "0");
  EXPECT_EQ(seen.value("ddprun_failures_total{kind=\"signal\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_failures_total{kind=\"hang\"}"), "0");
}

TEST_F(MetricsPageTest, ShowsOnWhatAJobSpendsItsSteps) {
  hello(1, "tells", "a", 2);
  hello(2, "tells", "b", 2);
  hello(3, "silent", "c");
  EXPECT_EQ(page().value("ddprun_job_step_ratio{job=\"tells\",part=\"data\"}"), "none");
  tell_shares(1, {.data = 10, .forward = 20, .backward = 30, .communication = 40});
  tell_shares(2, {.data = 62.5, .forward = 20, .backward = 17.5});
  const ParsedPage seen = page();
  EXPECT_EQ(seen.value("ddprun_job_step_ratio{job=\"tells\",part=\"data\"}"), "0.3625");
  EXPECT_EQ(seen.value("ddprun_job_step_ratio{job=\"tells\",part=\"other\"}"), "0.0000");
  EXPECT_EQ(seen.value("ddprun_job_step_highest_ratio{job=\"tells\",part=\"data\"}"), "0.6250");
  EXPECT_EQ(seen.value("ddprun_job_step_ratio{job=\"silent\",part=\"data\"}"), "none");
}

TEST_F(MetricsPageTest, AJobThatWasStoppedHasNotFailed) {
  hello(1, "one", "a");
  table_.receive(
      {.connection = AgentConnectionId(1)},
      AgentStatus{.phase = AgentPhase::kIdle, .generation = Generation(0), .leaving = 15}, now_);
  EXPECT_EQ(page().value("ddprun_jobs_ended_total{outcome=\"stopped\"}"), "1");
  EXPECT_EQ(page().value("ddprun_jobs_ended_total{outcome=\"failure\"}"), "0");
}

TEST_F(MetricsPageTest, ShowsTheProcessAndWhetherItsStateCanBeWritten) {
  EXPECT_EQ(page().value("ddprun_state_writable"), "1");
  figures_.state_writable = false;
  figures_.process = {.cpu = milliseconds(1500), .resident_bytes = 4096, .open_descriptors = 7};
  const ParsedPage seen = page();
  EXPECT_EQ(seen.value("ddprun_state_writable"), "0");
  EXPECT_EQ(seen.value("process_cpu_seconds_total"), "1.5");
  EXPECT_EQ(seen.value("process_resident_memory_bytes"), "4096");
  EXPECT_EQ(seen.value("process_open_fds"), "7");
}

TEST_F(MetricsPageTest, CountsRefusalsOfAgentsAndOfOtherConnectionsTogether) {
  table_.receive({.connection = AgentConnectionId(1)}, Heartbeat{}, now_);
  figures_.service.closed_before_hello = 4;
  EXPECT_EQ(page().value("ddprun_refused_handshakes_total"), "5");
}

TEST_F(MetricsPageTest, ShowsAStoreWhereThereIsOne) {
  EXPECT_EQ(page().value("ddprun_store_keys"), "none");
  StoreCounters store{.bytes_received = 12, .waiting = 2};
  store.requests[static_cast<std::size_t>(Command::kSet)] = 7;
  figures_.store = store;
  const ParsedPage seen = page();
  EXPECT_EQ(seen.value("ddprun_store_operations_total{kind=\"SET\"}"), "7");
  EXPECT_EQ(seen.value("ddprun_store_operations_total{kind=\"BARRIER\"}"), "0");
  EXPECT_EQ(seen.value("ddprun_store_received_bytes_total"), "12");
  EXPECT_EQ(seen.value("ddprun_store_waiters"), "2");
}

TEST_F(MetricsPageTest, EtcdHasFamiliesOnlyIfTheStateIsThere) {
  EXPECT_EQ(page().value("ddprun_leader"), "none");
  figures_.etcd = EtcdCounters{.leads = true, .term = 42, .errors = 3};
  figures_.etcd->took.note(milliseconds(2));
  const ParsedPage seen = page();
  EXPECT_EQ(seen.value("ddprun_leader"), "1");
  EXPECT_EQ(seen.value("ddprun_term"), "42");
  EXPECT_EQ(seen.value("ddprun_etcd_errors_total"), "3");
  EXPECT_EQ(seen.value("ddprun_etcd_request_seconds_count"), "1");
}

TEST_F(MetricsPageTest, LagIsAHistogramInSeconds) {
  for (const Duration lag : {Duration(0), Duration(milliseconds(1)), Duration(milliseconds(250)),
                             Duration(seconds(60))}) {
    figures_.service.lag.note(lag);
  }
  const ParsedPage seen = page();
  const std::string lag = "ddprun_event_loop_lag_seconds";
  EXPECT_EQ(seen.value(lag + "_bucket{le=\"0.001\"}"), "2");
  EXPECT_EQ(seen.value(lag + "_bucket{le=\"0.1\"}"), "2");
  EXPECT_EQ(seen.value(lag + "_bucket{le=\"0.5\"}"), "3");
  EXPECT_EQ(seen.value(lag + "_bucket{le=\"4\"}"), "3");
  EXPECT_EQ(seen.value(lag + "_bucket{le=\"+Inf\"}"), "4");
  EXPECT_EQ(seen.value(lag + "_count"), "4");
  EXPECT_EQ(seen.value(lag + "_sum"), "60.251");
}

// --- names that clients choose ---

TEST_F(MetricsPageTest, JobIdsAreEscaped) {
  hello(1, "a\"b\\c\nd\te {}é", "a");
  EXPECT_EQ(page().value("ddprun_job_members{job=\"a\\\"b\\\\c\\nd\te {}é\"}"), "1");
}

TEST_F(MetricsPageTest, WhatIsNoUtf8InAJobIdIsReplaced) {
  hello(1, "x\xff\xc3y\xed\xa0\x80\xf0\x9f\x98\x80", "a");
  EXPECT_EQ(page().value("ddprun_job_members{job=\"x??y???\xf0\x9f\x98\x80\"}"), "1");
}

TEST_F(MetricsPageTest, TwoJobsThatWouldLookAlikeAreListedOnce) {
  hello(1, "x\xfe", "a");
  hello(2, "x\xff", "b");
  const ParsedPage seen = page();  // fails if the page has a series twice
  EXPECT_EQ(seen.value("ddprun_job_members{job=\"x?\"}"), "1");
  EXPECT_EQ(seen.value("ddprun_jobs_not_listed"), "1");
}

TEST_F(MetricsPageTest, ThePageIsBoundedHoweverManyJobsThereAre) {
  constexpr int kJobs = 1000;
  for (int i = 0; i < kJobs; ++i) {
    hello(static_cast<std::uint64_t>(i) + 1,
          std::to_string(i) + std::string(kMaxNameBytes - 4, '"'), "a" + std::to_string(i));
    tell_shares(static_cast<std::uint64_t>(i) + 1, {.data = 100.0});
  }
  figures_.store.emplace();
  figures_.etcd.emplace();
  EXPECT_LT(metrics_page(table_, figures_, now_).size(), kMaxMetricsBytes);
  const ParsedPage seen = page();
  EXPECT_EQ(seen.value("ddprun_jobs{phase=\"running\"}"), std::to_string(kJobs));
  EXPECT_EQ(seen.value("ddprun_jobs_not_listed"), std::to_string(kJobs - 100));
}

TEST_F(MetricsPageTest, TheDocumentationHasTheseFamiliesWithTheirKindsAndNoOthers) {
  figures_.store.emplace();
  figures_.etcd.emplace();
  const ParsedPage seen = page();
  std::set<TableRow> families;
  for (const auto& [family, type] : seen.types()) families.insert({"`" + family + "`", type});
  const auto documented = table_rows("reference/metrics.md", {"family", "kind"});
  EXPECT_EQ(documented.size(), families.size()) << "one is there twice";
  EXPECT_EQ(std::set<TableRow>(documented.begin(), documented.end()), families);
}

// A renamed metric must not silence an alert.
TEST(MetricsInPackaging, AreOnThePage) {
  std::set<std::string> known;
  for (const TableRow& row : table_rows("reference/metrics.md", {"family", "kind"}))
    known.insert(row.front().substr(1, row.front().size() - 2));
  const std::regex name("(ddprun|process)_[a-z_]+");
  for (const char* file :
       {"prometheus/ddprun.rules.yml", "prometheus/ddprun.rules_test.yml", "grafana/ddprun.json"}) {
    const std::string text =
        testing_support::read_file(std::string(DDPRUN_SOURCE_DIR "/packaging/") + file);
    int found = 0;
    for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it, ++found) {
      std::string family = it->str();
      if (family.ends_with("_bucket")) family.resize(family.size() - 7);
      EXPECT_TRUE(known.contains(family)) << file << " has " << family;
    }
    EXPECT_GT(found, 3) << file;
  }
}

}  // namespace
}  // namespace ddprun
