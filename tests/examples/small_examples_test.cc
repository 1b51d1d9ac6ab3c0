// Tests the examples that show one thing each, with real processes: average_gradients,
// accumulate, unused_parameters, uneven_inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/worker_cluster.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::digest_after;
using testing_support::joined;
using testing_support::number_after;
using testing_support::program;
using testing_support::WorkerCluster;

const std::vector<std::string> kExamples{"average_gradients", "accumulate", "unused_parameters",
                                         "uneven_inputs"};

struct Ended {
  int exit_code;
  std::string output;
};

// Runs an example and returns one result for each rank.
std::vector<Ended> results(const std::string& example, int ranks, const Arguments& options = {}) {
  WorkerCluster cluster({.command = joined({program(example)}, options), .per_node = ranks});
  EXPECT_TRUE(cluster.wait_for_all(seconds(60)));
  std::vector<Ended> all;
  for (int rank = 0; rank < ranks; ++rank)
    all.push_back({cluster.exit_code(rank), cluster.output(rank)});
  return all;
}

// Returns what each rank printed. All ranks must succeed.
std::vector<std::string> outputs(const std::string& example, int ranks,
                                 const Arguments& options = {}) {
  std::vector<std::string> texts;
  for (const Ended& worker : results(example, ranks, options)) {
    EXPECT_EQ(worker.exit_code, 0) << worker.output;
    texts.push_back(worker.output);
  }
  return texts;
}

void expect_same_weights(const std::vector<std::string>& texts) {
  const std::string first = digest_after(texts[0], "rank 0  sha256 ");
  EXPECT_THAT(first, MatchesRegex("[0-9a-f]{64}"));
  for (std::size_t rank = 1; rank < texts.size(); ++rank)
    EXPECT_EQ(digest_after(texts[rank], "rank " + std::to_string(rank) + "  sha256 "), first);
}

constexpr int kEpochs = 5;

double loss_of_epoch(const std::string& text, int epoch) {
  return number_after(text, "epoch  " + std::to_string(epoch) + "  loss ");
}

// Expects that the loss falls. It starts at about ln 10, which is a guess among ten digits.
void expect_loss_falls(const std::string& text, double at_the_end) {
  EXPECT_LT(loss_of_epoch(text, 1), 2.4);
  for (int epoch = 2; epoch <= kEpochs; ++epoch)
    EXPECT_LT(loss_of_epoch(text, epoch), loss_of_epoch(text, epoch - 1)) << text;
  EXPECT_LT(loss_of_epoch(text, kEpochs), at_the_end);
}

TEST(AverageGradients, EveryWorkerEndsWithTheSameWeights) {
  for (const int ranks : {2, 3}) {
    const std::vector<std::string> texts = outputs("average_gradients", ranks);
    expect_same_weights(texts);
    expect_loss_falls(texts[0], 0.5);
  }
}

// Two workers get the images that one worker gets in the same step. One image is repeated in
// each epoch, so that both workers have the same number.
TEST(AverageGradients, TwoWorkersLearnWhatOneLearnsWithBatchesOfTwiceTheSize) {
  const std::string one = outputs("average_gradients", 1, {"--batch-size=32"})[0];
  const std::string two = outputs("average_gradients", 2, {"--batch-size=16"})[0];
  for (int epoch = 1; epoch <= kEpochs; ++epoch)
    EXPECT_NEAR(loss_of_epoch(one, epoch), loss_of_epoch(two, epoch), 0.01);
}

TEST(AverageGradients, EndsWithTheBitsOfDistributedDataParallel) {
  EXPECT_EQ(digest_after(outputs("average_gradients", 2)[0], "sha256 "),
            digest_after(outputs("accumulate", 2, {"--parts=1"})[0], "sha256 "));
}

// 5 does not divide 32, so the last part is smaller than the others.
TEST(Accumulate, PartsAreApartFromWholeBatchesByRoundingOnly) {
  for (const auto& [ranks, parts] : std::vector<std::pair<int, std::string>>{{1, "5"}, {2, "4"}}) {
    const std::string text = outputs("accumulate", ranks, {"--parts=" + parts})[0];
    EXPECT_THAT(text, AllOf(StartsWith("parts 1  loss "), HasSubstr("\nparts " + parts + "  ")));
    EXPECT_LT(number_after(text, "parts 1  loss "), 0.5);
    EXPECT_NEAR(number_after(text, "parts " + parts + "  loss "),
                number_after(text, "parts 1  loss "), 1e-3);
    EXPECT_LT(number_after(text, "largest difference of a weight "), 1e-5);
  }
}

// 1437 images are 23 batches of 32 for each of two workers, and 45 batches for one worker.
TEST(UnusedParameters, AllWorkersHaveTheGradientOfABranchThatOneOfThemTook) {
  const std::vector<std::string> texts = outputs("unused_parameters", 2);
  expect_same_weights(texts);
  expect_loss_falls(texts[0], 1.0);
  for (const std::string& text : texts)
    EXPECT_THAT(text, AllOf(HasSubstr("branch 0  a gradient in 77 of 115 steps\n"),
                            HasSubstr("branch 1  a gradient in 77 of 115 steps\n"),
                            HasSubstr("branch 2  a gradient in 76 of 115 steps\n")));
  EXPECT_THAT(outputs("unused_parameters", 1)[0],
              HasSubstr("branch 2  a gradient in 75 of 225 steps\n"));
}

TEST(UnusedParameters, WithoutTheOptionEveryWorkerSaysWhoMissesWhat) {
  for (const Ended& worker : results("unused_parameters", 2, {"--without"})) {
    EXPECT_EQ(worker.exit_code, 1);
    EXPECT_THAT(worker.output, AllOf(StartsWith("unused_parameters: "),
                                     HasSubstr("rank 0 got no gradient for 'branch1.weight'"),
                                     HasSubstr("rank 1 got no gradient for 'branch0.weight'"),
                                     HasSubstr("find_unused_parameters")));
  }
}

TEST(UnevenInputs, WorkersWithFifteenAndThirtyBatchesEndWithTheSameWeights) {
  const std::vector<std::string> texts = outputs("uneven_inputs", 2);
  EXPECT_THAT(texts[0], HasSubstr("rank 0  15 batches in an epoch\n"));
  EXPECT_THAT(texts[1], HasSubstr("rank 1  30 batches in an epoch\n"));
  expect_same_weights(texts);
  expect_loss_falls(texts[0], 0.5);
  EXPECT_GE(number_after(texts[0], "test accuracy "), 80);
}

TEST(SmallExamples, RunUnderDdprun) {
  for (const std::string& example : kExamples) {
    ChildProcess job(
        {program("ddprun"), "--standalone", "--nproc-per-node=2", program(example), "--epochs=1"});
    EXPECT_EQ(job.wait(seconds(60)), 0) << job.out() << job.err();
    EXPECT_THAT(job.out(), HasSubstr("[rank 0] "));
  }
}

TEST(SmallExamples, HelpShowsACommandAndTheOptions) {
  for (const std::string& example : kExamples) {
    const Ended help = results(example, 1, {"--help"})[0];
    EXPECT_EQ(help.exit_code, 0);
    for (const std::string& words :
         {"ddprun --standalone --nproc-per-node=2 " + example, std::string("--data"),
          std::string("--epochs"), std::string("--batch-size"), std::string("--lr"),
          std::string("--seed")})
      EXPECT_THAT(help.output, HasSubstr(words));
  }
}

TEST(SmallExamples, BadOptionsAreOneLineAndExitCodeTwo) {
  for (const std::string& example : kExamples) {
    for (const std::string option : {"--epochs=0", "--lr=-1", "--data=/nowhere", "--nonsense"}) {
      const Ended refused = results(example, 1, {option})[0];
      EXPECT_EQ(refused.exit_code, 2) << option;
      EXPECT_THAT(refused.output,
                  AllOf(StartsWith(example + ": "), HasSubstr(option.substr(0, 4))));
      EXPECT_EQ(std::ranges::count(refused.output, '\n'), 1) << refused.output;
    }
  }
}

}  // namespace
}  // namespace ddprun
