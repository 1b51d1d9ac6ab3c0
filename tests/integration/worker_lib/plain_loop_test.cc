// A converted third-party program (plain_loop_worker) as real processes under ddprun: a data loader
// with worker threads, a rank that leaves its loop early, and the program's own epoch variable.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <nlohmann/json.hpp>

#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/held_port.h"
#include "tests/support/http_get.h"
#include "tests/support/number_after.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

class PlainLoop : public LauncherTest {
 protected:
  // Runs the program as a job of two ranks and waits for its end.
  std::unique_ptr<ChildProcess> run(const std::string& name, const Arguments& options,
                                    int restarts = 0) const {
    auto job = start(
        joined({"--standalone", "--nproc-per-node=2", "--max-restarts=" + std::to_string(restarts),
                program("plain_loop_worker"), "--checkpoint-dir=" + checkpoints(name)},
               options));
    EXPECT_TRUE(job->wait(seconds(60))) << job->err();
    return job;
  }
  std::string checkpoints(const std::string& name) const { return directory_ / name; }

  // Returns "steps N sha256 DIGEST" of a job that succeeded.
  static std::string end_of(ChildProcess& job) {
    EXPECT_EQ(job.wait(seconds(1)), 0) << job.err();
    const std::size_t at = job.out().find("steps ");
    return at == std::string::npos ? "" : job.out().substr(at, job.out().find('\n', at) - at);
  }

  // Returns the steps of the checkpoints, sorted.
  std::vector<std::int64_t> saved_steps(const std::string& name) const {
    std::vector<std::int64_t> steps;
    ChildProcess list({program("ddprun-ckpt"), "ls", checkpoints(name)});
    EXPECT_EQ(list.wait(seconds(30)), 0) << list.err();
    for (const std::string& line : lines_of(list.out()))
      steps.push_back(static_cast<std::int64_t>(number_after(line, "step ")));
    std::ranges::sort(steps);
    return steps;
  }

  // Returns the step after which the rank has left its loop.
  static std::int64_t step_left_at(const ChildProcess& job) {
    return static_cast<std::int64_t>(number_after(job.out(), "left its loop after step "));
  }

  // Expects that the job failed and that no checkpoint is later than the early exit.
  void expect_nothing_saved_after(const std::string& name, ChildProcess& job) const {
    EXPECT_THAT(job.wait(seconds(1)), testing::Optional(Not(0))) << job.err();
    const std::vector<std::int64_t> steps = saved_steps(name);
    ASSERT_FALSE(steps.empty());
    EXPECT_LE(steps.back(), step_left_at(job));
  }
};

class LoaderWorkers : public PlainLoop, public testing::WithParamInterface<int> {};

TEST_P(LoaderWorkers, AKilledRunEndsWithTheSameStepsAndBits) {
  const std::string workers = "--loader-workers=" + std::to_string(GetParam());
  const std::string expected = end_of(*run("undisturbed", {workers}));
  EXPECT_THAT(expected, testing::MatchesRegex("steps [0-9]+ sha256 [0-9a-f]{64}"));
  const auto killed = run("killed", {workers, "--kill-step=37"}, /*restarts=*/1);
  EXPECT_EQ(end_of(*killed), expected);
  EXPECT_THAT(killed->out(), HasSubstr("resumed at step 30"));
  EXPECT_THAT(killed->err(), HasSubstr("succeeded after 1 of 1 restarts"));
  EXPECT_EQ(saved_steps("killed"), saved_steps("undisturbed"));
}

INSTANTIATE_TEST_SUITE_P(Of, LoaderWorkers, testing::Values(0, 2));

TEST_F(PlainLoop, ARankThatLeavesItsLoopEarlyIsNamedAndNothingIsSavedAfterwards) {
  const auto job = run("stopped", {"--stop-rank=1", "--loader-workers=2"});
  expect_nothing_saved_after("stopped", *job);
  EXPECT_THAT(job->err(), AllOf(HasSubstr("rank 0 is in epoch 2, rank 1 is in epoch 3"),
                                HasSubstr("one has left its loop early")));
}

TEST_F(PlainLoop, SoItIsWhereItSavesAtTheEndOfTheEpochThatItLeft) {
  const auto job = run("stopped", {"--stop-rank=1", "--checkpoint-every=0"});
  expect_nothing_saved_after("stopped", *job);
  const std::string left_at = std::to_string(step_left_at(*job));
  EXPECT_THAT(
      job->err(),
      AllOf(HasSubstr("the ranks disagree: rank 0 called all_reduce #"),
            HasSubstr("; rank 1 called all_gather #"),
            HasSubstr("save a checkpoint of step " + left_at + " in epoch 2: all_gather #"),
            HasSubstr(" in epoch 2: all_reduce #"), HasSubstr("a rank that leaves a loop early")));
}

TEST_F(PlainLoop, SoItIsInTheLastEpoch) {
  const auto job = run("stopped", {"--stop-rank=1", "--stop-epoch=3"});
  expect_nothing_saved_after("stopped", *job);
  EXPECT_THAT(job->err(), AllOf(HasSubstr("the ranks disagree: rank 0 called all_reduce #"),
                                HasSubstr("; rank 1 called broadcast #"),
                                HasSubstr("wait until checkpoints are written: broadcast #"),
                                HasSubstr("backward pass of DistributedDataParallel: pass "),
                                HasSubstr(" in epoch 3: all_reduce #"),
                                HasSubstr("a rank that leaves a loop early")));
}

TEST_F(PlainLoop, AnEpochVariableOfItsOwnIsWarnedOfWhenItSavesAndWhenItResumes) {
  const auto job = run("own", {"--own-epoch", "--kill-step=37"}, /*restarts=*/1);
  EXPECT_THAT(job->out(), HasSubstr("resumed at step 30"));
  const std::string warning = ": TrainingState::epoch is 0, but its sampler is in ";
  const std::string of_save = "save a checkpoint" + warning;
  const std::string of_restore = ".pt" + warning;
  EXPECT_THAT(job->err(), AllOf(HasSubstr(of_save + "epoch 1: a resumed run begins at epoch 0"),
                                HasSubstr("restore a checkpoint: " + checkpoints("own")),
                                HasSubstr(of_restore + "epoch 2: a resumed run begins at epoch 0"),
                                HasSubstr("let the loop count in TrainingState::epoch")));
  EXPECT_THAT(run("counted", {})->err(), Not(HasSubstr("TrainingState::epoch is")));
}

// The loop decodes 32 images for 2 ms each, and trains a small net.
TEST_F(PlainLoop, DataLoadingIsSaidToLimitTheSteps) {
  const HeldPort held;
  const auto job = start({"--nproc-per-node=2", "--rdzv-id=reads", "--nnodes=1",
                          "--rdzv-endpoint=" + held.endpoint(), program("plain_loop_worker"),
                          "--checkpoint-dir=" + checkpoints("reads"), "--statistics-every=1",
                          "--read-ms=2", "--epochs=100000"});
  nlohmann::json ranks;
  EXPECT_TRUE(eventually([&] {
    const auto status = start({"status", "reads", "--json"});
    status->wait();
    const nlohmann::json seen = nlohmann::json::parse(status->out(), nullptr, false);
    if (seen.is_discarded()) return false;
    ranks = seen.value("/agents/0/ranks"_json_pointer, nlohmann::json::array());
    return ranks.size() == 2 && std::ranges::all_of(ranks, [](const nlohmann::json& rank) {
             return rank.value("limits", "").starts_with("data ");
           });
  })) << ranks
      << job->err();
  for (const nlohmann::json& rank : ranks) {
    double sum = 0;
    for (const auto& [part, percent] : rank.at("step_percent").items())
      sum += percent.get<double>();
    EXPECT_GT(sum, 30) << rank;
    EXPECT_LE(sum, 100.1) << rank;
  }
  const auto top = start({"top", "reads", "--once"});
  EXPECT_EQ(top->wait(), 0);
  EXPECT_THAT(top->out(), testing::ContainsRegex("LIMITS.*\n.* data [0-9]+ %"));
  // Metrics and the event come also while no page is open.
  EXPECT_TRUE(eventually(
      [&] {
        const std::string status = http_get(held.port(), "/status.json").body;
        return status.find("% of a step is data") != std::string::npos;
      },
      seconds(120)))
      << http_get(held.port(), "/status.json").body;
  const std::string metrics = http_get(held.port(), "/metrics").body;
  EXPECT_THAT(metrics, testing::ContainsRegex(
                           "ddprun_job_step_ratio\\{job=\"reads\",part=\"data\"\\} 0\\.[3-9]"));
  job->signal(SIGTERM);
  job->wait();
}

}  // namespace
}  // namespace ddprun::testing_support
