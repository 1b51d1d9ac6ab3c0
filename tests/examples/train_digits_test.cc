// Tests the example train_digits with real processes: its accuracy, kills, and the same bits
// after them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>

#include "base/rng.h"
#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_mark.h"
#include "tests/support/test_seed.h"
#include "tests/support/worker_cluster.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::eventually;
using testing_support::first_line_of;
using testing_support::joined;
using testing_support::kPatience;
using testing_support::let_pass;
using testing_support::number_after;
using testing_support::processes_with;
using testing_support::program;
using testing_support::seed_text;
using testing_support::TemporaryDirectory;
using testing_support::test_seed;
using testing_support::TestMark;
using testing_support::up_to;
using testing_support::WorkerCluster;

constexpr int kKilled = 128 + SIGKILL;

Arguments command(const Arguments& options) { return joined({program("train_digits")}, options); }

// Job: a job of several ranks. A test starts it again after every failure, as a launcher does.
class Job {
 public:
  Job(int ranks, Arguments options) : ranks_(ranks), options_(std::move(options)) {
    options_.push_back("--digest-file=" + digest_file());
  }

  // Keeps a checkpoint every `steps` steps.
  void keep_checkpoints(int steps) {
    options_.push_back("--checkpoint-dir=" + directory_ / "checkpoints");
    options_.push_back("--checkpoint-every=" + std::to_string(steps));
  }

  // Runs one generation undisturbed. Afterwards output() is that of rank 0.
  void run() {
    start();
    finish();
  }

  void start() {
    cluster_.reset();
    cluster_.emplace(testing_support::WorkerClusterOptions{
        .command = command(options_), .per_node = ranks_, .generation = generation_++});
  }

  // Waits until all generations together have executed `executed` steps, and then for `delay`.
  // Kills one rank or all, and stops the others, as a launcher does. While the world still
  // forms, the others could not notice the loss.
  void kill_at(std::int64_t executed, Duration delay, int rank_or_all) {
    ASSERT_TRUE(eventually([&] { return executed_steps() >= executed; })) << output(0);
    let_pass(delay);
    for (int rank = 0; rank < ranks_; ++rank)
      if (rank_or_all == ranks_ || rank == rank_or_all) cluster_->signal(rank, SIGKILL);
    for (int rank = 0; rank < ranks_; ++rank) cluster_->signal(rank, SIGTERM);
    await_the_end();
  }

  // Returns the number of steps that all generations so far have executed.
  std::int64_t executed_steps() const {
    return std::atoll(first_line_of(directory_ / "checkpoints/executed-steps").c_str());
  }

  // Waits until all ranks have ended. The others notice by themselves that a rank is lost.
  void await_the_end() {
    ASSERT_TRUE(cluster_->wait_for_all(kPatience));
    output_ = cluster_->output(0);
  }

  void finish() {
    ASSERT_TRUE(cluster_->wait_for_all(seconds(60)));
    for (int rank = 0; rank < ranks_; ++rank)
      ASSERT_EQ(cluster_->exit_code(rank), 0) << cluster_->output(rank);
    output_ = cluster_->output(0);
  }

  int exit_code(int rank) const { return cluster_->exit_code(rank); }
  const std::string& output() const { return output_; }
  std::string output(int rank) const { return cluster_->output(rank); }
  std::string digest_file() const { return directory_ / "digest"; }
  std::string digest() const { return first_line_of(digest_file()); }

 private:
  const TemporaryDirectory directory_;
  const int ranks_;
  Arguments options_;
  long generation_ = 0;
  std::optional<WorkerCluster> cluster_;
  std::string output_;
};

TEST(TrainDigits, TwoWorkersReachNinetyFivePercent) {
  Job job(2, {});
  job.run();
  EXPECT_GE(number_after(job.output(), "final accuracy "), 95);
  EXPECT_THAT(job.output(), HasSubstr("epoch  1  loss "));
  EXPECT_THAT(job.output(), HasSubstr("steps 345, executed in all generations 345\n"));
  EXPECT_THAT(job.output(), HasSubstr("sha256 " + job.digest() + "\n"));
  EXPECT_THAT(job.digest(), MatchesRegex("[0-9a-f]{64}"));
  EXPECT_EQ(job.output(1), "");
}

TEST(TrainDigits, AWorkerThatKillsItselfIsMadeUpForWithTheSameBits) {
  Job undisturbed(2, {"--epochs=4"});
  undisturbed.run();
  Job crashed(2, {"--epochs=4", "--crash-rank=1", "--crash-step=33"});
  crashed.keep_checkpoints(10);
  crashed.start();
  crashed.await_the_end();
  EXPECT_EQ(crashed.exit_code(1), kKilled);
  EXPECT_EQ(crashed.exit_code(0), 1);
  EXPECT_THAT(crashed.output(), HasSubstr("rank 1"));
  crashed.run();  // the same command: no crash in generation 1
  EXPECT_THAT(crashed.output(), HasSubstr("resumed at step 30 (epoch 2) from "));
  const double executed = number_after(crashed.output(), "executed in all generations ");
  EXPECT_GE(executed, 92 + 3);
  EXPECT_LE(executed, 92 + 10);
  EXPECT_EQ(crashed.digest(), undisturbed.digest());
}

// The intervals do not divide the epoch. One rank or all ranks are killed from outside, at
// random times.
class RandomKills : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RandomKills, testing::Values(2, 3));

TEST_P(RandomKills, TheKilledJobEndsWithTheBitsOfTheUndisturbedOne) {
  const int ranks = GetParam();
  const Arguments options{"--epochs=4", "--batch-size=16"};
  Job undisturbed(ranks, options);
  undisturbed.run();

  Job killed(ranks, options);
  killed.keep_checkpoints(7);
  const std::uint64_t seed = test_seed(static_cast<std::uint64_t>(ranks));
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  constexpr int kKills = 4;
  for (int kills = 0; kills < kKills; ++kills) {
    killed.start();
    killed.kill_at(killed.executed_steps() + static_cast<std::int64_t>(rng.below(25)),
                   up_to(milliseconds(20), rng), static_cast<int>(rng.below(ranks + 1u)));
  }
  killed.run();
  const double steps = number_after(killed.output(), "\nsteps ");
  const double executed = number_after(killed.output(), "executed in all generations ");
  EXPECT_GE(executed, steps);
  // A kill repeats the steps since the last save. If that save was still being written, the
  // steps since the save before it are repeated, too.
  EXPECT_LE(executed, steps + kKills * 2 * 7);
  EXPECT_THAT(killed.output(), HasSubstr("resumed at step "));
  EXPECT_EQ(killed.digest(), undisturbed.digest());
}

// Tests all parts together: ddprun stops and restarts the other workers.
TEST(TrainDigitsUnderDdprun, EndsWithTheSameBitsAfterKillsFromOutside) {
  const TemporaryDirectory directory;
  const TestMark mark;
  const auto start = [&](const std::string& name) {
    ChildProcess::Options environment;
    environment.variables = {mark.variable()};
    return std::make_unique<ChildProcess>(
        joined(
            {program("ddprun"), "--standalone", "--nproc-per-node=3", "--max-restarts=3"},
            command({"--epochs=20", "--checkpoint-every=7", "--checkpoint-dir=" + directory / name,
                     "--digest-file=" + directory / (name + ".sha256")})),
        environment);
  };
  auto undisturbed = start("undisturbed");
  ASSERT_EQ(undisturbed->wait(seconds(60)), 0) << undisturbed->err();

  auto job = start("killed");
  const std::uint64_t seed = test_seed(7);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  for (int generation = 0; generation < 3; ++generation) {
    ASSERT_TRUE(job->wait_for_out("epoch  " + std::to_string(generation + 1) + "  loss"))
        << job->out() << job->err();
    let_pass(up_to(milliseconds(60), rng));
    const std::string rank = std::to_string(rng.below(3));
    std::vector<pid_t> victims;
    ASSERT_TRUE(eventually([&] {
      victims = mark.processes();
      const std::vector<pid_t> of_rank = processes_with("RANK", rank);
      std::erase_if(victims, [&](pid_t pid) { return std::ranges::count(of_rank, pid) == 0; });
      return !victims.empty();
    }));
    for (const pid_t pid : victims) kill(pid, SIGKILL);
    ASSERT_TRUE(job->wait_for_err("generation " + std::to_string(generation + 1) + ": starting"))
        << job->err();
  }
  ASSERT_EQ(job->wait(seconds(60)), 0) << job->out() << job->err();
  EXPECT_THAT(job->out(), HasSubstr("resumed at step "));
  const double steps = number_after(job->out(), " steps ");
  EXPECT_LE(number_after(job->out(), "executed in all generations "), steps + 3 * 2 * 7);
  EXPECT_EQ(first_line_of(directory / "killed.sha256"),
            first_line_of(directory / "undisturbed.sha256"));
  EXPECT_TRUE(mark.processes().empty());
}

TEST(TrainDigits, ADamagedCheckpointIsPassedOverInWords) {
  Job job(2, {"--epochs=1"});
  job.keep_checkpoints(10);
  job.run();
  const std::string digest = job.digest();
  // Now there are checkpoints of steps 10, 20 and 23.
  const auto newest = std::filesystem::path(job.digest_file()).parent_path() / "checkpoints" /
                      "step-000000000023.pt";
  std::filesystem::resize_file(newest, std::filesystem::file_size(newest) - 1);
  job.run();
  EXPECT_THAT(job.output(), AllOf(HasSubstr("skipped step 23: "), HasSubstr("resumed at step 20")));
  EXPECT_EQ(job.digest(), digest);
}

// Runs one worker whose options are refused. Returns its exit code and its output.
std::pair<int, std::string> alone(const Arguments& options) {
  WorkerCluster cluster({.command = command(options), .per_node = 1});
  EXPECT_TRUE(cluster.wait_for_all(kPatience));
  return {cluster.exit_code(0), cluster.output(0)};
}

TEST(TrainDigits, BadOptionsAreOneLineAndExitCodeTwo) {
  for (const auto& [option, words] :
       std::vector<std::pair<std::string, std::string>>{{"--epochs=0", "--epochs"},
                                                        {"--epochs=many", "--epochs"},
                                                        {"--lr=-1", "--lr"},
                                                        {"--data=/nowhere", "/nowhere"},
                                                        {"--nonsense", "--nonsense"},
                                                        {"--crash-rank=0", "--crash-step"}}) {
    const auto [code, output] = alone({option});
    EXPECT_EQ(code, 2) << option;
    EXPECT_THAT(output, AllOf(HasSubstr("train_digits: "), HasSubstr(words)));
    EXPECT_EQ(std::ranges::count(output, '\n'), 1) << output;
  }
}

TEST(TrainDigits, HelpNamesEveryOption) {
  const auto [code, output] = alone({"--help"});
  EXPECT_EQ(code, 0);
  for (const char* option :
       {"--data", "--epochs", "--batch-size", "--lr", "--seed", "--checkpoint-dir",
        "--checkpoint-every", "--digest-file", "--crash-rank", "--crash-step"})
    EXPECT_THAT(output, HasSubstr(option));
}

TEST(TrainDigits, MissingDataIsNamed) {
  const TemporaryDirectory empty;
  const auto [code, output] = alone({"--data=" + empty.path()});
  EXPECT_EQ(code, 1);
  EXPECT_THAT(output, HasSubstr(empty / "train-images-idx3-ubyte: No such file"));
}

}  // namespace
}  // namespace ddprun
