#include "launcher/agent/report_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <nlohmann/json.hpp>

#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;
using testing::HasSubstr;
using testing_support::read_file;
using testing_support::TemporaryDirectory;

class ReportFileTest : public testing::Test {
 protected:
  Json read() const { return Json::parse(read_file(path_)); }

  static WorkerEnd worker(int rank, EndKind kind, int code) {
    WorkerEnd end{.kind = kind, .code = code};
    end.rank = Rank(rank);
    end.host = "node0";
    end.pid = 100 + rank;
    end.age = std::chrono::seconds(5);
    return end;
  }
  static Verdict failed(int generation, std::vector<WorkerEnd> ends) {
    Verdict verdict{.exit_code = 3, .headline = "h", .ends = std::move(ends)};
    verdict.generation = Generation(generation);
    return verdict;
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "report.json";
  ReportFile report_{path_, "job1", "node0"};
};

TEST_F(ReportFileTest, IsWholeFromTheStartToTheEnd) {
  ASSERT_TRUE(report_.write_running());
  EXPECT_EQ(read()["state"], "running");
  EXPECT_EQ(read()["job"], "job1");
  report_.add_failure(failed(0, {worker(1, EndKind::kExited, 3)}));
  ASSERT_TRUE(report_.write_running());
  EXPECT_EQ(read()["failed_generations"].size(), 1u);
  ASSERT_TRUE(
      report_.end({.exit_code = 0,
                   .headline = "every worker ended with 0",
                   .verdict = Verdict{.success = true,
                                      .restarts_used = 1,
                                      .times = JobTimes{.generations = 2, .has_steps = true}}}));
  const Json json = read();
  EXPECT_EQ(json["times"]["restarts"], 1);
  EXPECT_EQ(json["times"]["causes_ms"]["lost_work"], 0);
  EXPECT_EQ(json["state"], "ended");
  EXPECT_EQ(json["exit_code"], 0);
  EXPECT_EQ(json["exit_code_of"], "job");
  EXPECT_EQ(json["restarts_used"], 1);
  EXPECT_EQ(json["failed_generations"].size(), 1u) << "the last one did not fail";
  EXPECT_EQ(testing_support::listing(directory_.path()), std::vector<std::string>{"report.json"});
}

TEST_F(ReportFileTest, SaysWhoseExitCodeItIs) {
  const auto source = [&](int code, std::optional<Verdict> verdict) {
    EXPECT_TRUE(report_.end({.exit_code = code, .headline = "h", .verdict = std::move(verdict)}));
    return read()["exit_code_of"].get<std::string>();
  };
  EXPECT_EQ(source(2, failed(0, {worker(0, EndKind::kExited, 2)})), "worker");
  EXPECT_EQ(source(2, std::nullopt), "ddprun");
  EXPECT_EQ(source(143, std::nullopt), "signal");
  EXPECT_EQ(source(68, failed(0, {worker(0, EndKind::kNodeLost, 0)})), "ddprun");
  EXPECT_EQ(source(64, failed(0, {worker(0, EndKind::kNotStarted, 2)})), "ddprun");
  EXPECT_EQ(source(70, failed(0, {worker(0, EndKind::kExited, 3)})), "ddprun");
}

TEST_F(ReportFileTest, SaysInAWordHowTheJobEnded) {
  const auto kind = [&](int code, std::optional<Verdict> verdict) {
    EXPECT_TRUE(report_.end({.exit_code = code, .headline = "h", .verdict = std::move(verdict)}));
    return read()["kind"].get<std::string>();
  };
  EXPECT_EQ(kind(0, Verdict{.success = true}), "success");
  EXPECT_EQ(kind(75, Verdict{.success = true}), "saved");
  EXPECT_EQ(kind(143, std::nullopt), "stop_on_request");
  EXPECT_EQ(kind(143, failed(0, {worker(0, EndKind::kSignaled, 15)})), "signal") << "a worker's";
  EXPECT_EQ(kind(71, failed(0, {worker(0, EndKind::kHung, 0)})), "hang");
  EXPECT_EQ(kind(65, std::nullopt), "ddprun");
  EXPECT_EQ(kind(70, failed(0, {worker(0, EndKind::kExited, 3)})), "ddprun")
      << "what else could not be killed";
}

TEST_F(ReportFileTest, AProgramThatIsNotThereIsAFailureOfTheStart) {
  ASSERT_TRUE(
      report_.end({.exit_code = 2, .headline = "exec ./x: no such file", .no_program = true}));
  EXPECT_EQ(read()["kind"], "start_failure");
  EXPECT_EQ(read()["exit_code_of"], "ddprun");
}

// Several nodes may share one file system, or each may have its own.
TEST_F(ReportFileTest, BelongsToWhoWroteItLastUntilTheEndIsTold) {
  ReportFile other(path_, "job1", "node1");
  EXPECT_FALSE(other.is_anothers(false)) << "there is none";
  ASSERT_TRUE(other.write_running());
  EXPECT_FALSE(other.is_anothers(false));
  EXPECT_TRUE(report_.is_anothers(false));
  EXPECT_FALSE(report_.is_anothers(true)) << "who would write it is gone";
  ASSERT_TRUE(other.end({.headline = "every worker ended with 0"}));
  EXPECT_TRUE(report_.is_anothers(true));
  EXPECT_TRUE(other.is_anothers(false));
}

TEST_F(ReportFileTest, ALostLeaseIsToldFromANodeThatSaysGoodbye) {
  WorkerEnd silent = worker(0, EndKind::kNodeLost, 0);
  silent.message = std::string(kSilentFor) + "5.0 s";
  silent.loss = NodeLoss::kLeaseExpired;
  ASSERT_TRUE(report_.end({.exit_code = 68, .headline = "h", .verdict = failed(0, {silent})}));
  EXPECT_EQ(read()["failed_generations"][0]["first"][0]["kind"], "lease_lost");
}

TEST_F(ReportFileTest, WithoutAPathThereIsNone) {
  ReportFile none("", "j", "h");
  EXPECT_TRUE(none.write_running());
  EXPECT_TRUE(none.end({.exit_code = 1}));
}

TEST_F(ReportFileTest, WhatCannotBeWrittenIsNamed) {
  ReportFile nowhere(directory_ / "no" + "/such/report.json", "j", "h");
  const Result<void> begun = nowhere.write_running();
  ASSERT_FALSE(begun);
  EXPECT_THAT(begun.error().message(), HasSubstr("--report-file: write "));
  EXPECT_THAT(begun.error().message(), HasSubstr("No such file or directory"));
}

// The report is written to a new file, which is then renamed to the final path. A user with
// enough rights would lose /dev/null by that.
TEST_F(ReportFileTest, ADeviceOrALinkIsNotReplaced) {
  for (const char* place : {"/dev/null", "/dev/full"}) {
    std::filesystem::create_symlink(place, directory_ / "link");
    ReportFile report(directory_ / "link", "j", "h");
    const Result<void> begun = report.write_running();
    ASSERT_FALSE(begun);
    EXPECT_THAT(begun.error().message(), HasSubstr("not a regular file"));
    EXPECT_TRUE(std::filesystem::is_symlink(directory_ / "link"));
    std::filesystem::remove(directory_ / "link");
  }
}

}  // namespace
}  // namespace ddprun
