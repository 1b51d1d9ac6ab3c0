// Tests the example resnet18 with real processes: it learns, averaging by hand gives the same
// bits, and it can be resumed. resnet18_test.py compares it with PyTorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::digest_after;
using testing_support::joined;
using testing_support::number_after;
using testing_support::program;
using testing_support::TemporaryDirectory;

std::string output_of(int workers, const Arguments& options) {
  ChildProcess job(
      joined({program("ddprun"), "--standalone", "--nproc-per-node=" + std::to_string(workers),
              program("resnet18"), "--width=4"},
             options));
  EXPECT_EQ(job.wait(seconds(60)), 0) << job.out() << job.err();
  return job.out();
}

double loss_of_epoch(const std::string& text, int epoch) {
  const std::size_t at = text.find("epoch  " + std::to_string(epoch));
  return at == std::string::npos ? -1 : number_after(text.substr(at), "  loss ");
}

TEST(Resnet18, LearnsTheDigitsWhicheverWayGradientsAreAveraged) {
  const std::string by_ddp = output_of(2, {"--epochs=2"});
  EXPECT_GT(loss_of_epoch(by_ddp, 1), loss_of_epoch(by_ddp, 2));
  // A guess gives 0.1. After two epochs of width 4 the accuracy depends on the processor's
  // kernels: 0.63 with AVX2, 0.48 with AVX-512.
  EXPECT_GE(number_after(by_ddp.substr(by_ddp.find("epoch  2")), "accuracy "), 0.3) << by_ddp;
  EXPECT_EQ(by_ddp.find('\r'), std::string::npos);  // without a terminal there is no progress bar
  for (const char* by_hand : {"after", "hooks"})
    EXPECT_EQ(digest_after(output_of(2, {"--epochs=2", std::string("--averaging=") + by_hand})),
              digest_after(by_ddp))
        << by_hand;
}

TEST(Resnet18, ComparesThreeAveragingsThatHaveTheSameLosses) {
  for (const auto& [workers, batch_norm] : {std::pair{2, "sync"}, {3, "plain"}}) {
    const std::string output =
        output_of(workers, {"--compare", "--batch-size=8", "--steps=9", "--warmup=3",
                            std::string("--batch-norm=") + batch_norm});
    EXPECT_THAT(output, HasSubstr("losses: the same bits in all 12 steps\n"));
    std::vector<double> first_losses;
    for (const char* averaging : {"ddp  ", "after", "hooks"}) {
      const std::size_t at = output.find(std::string("] ") + averaging);
      ASSERT_NE(at, std::string::npos) << output;
      double first = 0, last = 0, ms = 0, of_ddp = 0;
      ASSERT_EQ(
          std::sscanf(output.c_str() + at + 7, "%lf %lf %lf %lf", &first, &last, &ms, &of_ddp), 4);
      // Twelve batches of 8 do not show that it learns: the losses depend on the kernels.
      EXPECT_NE(last, first);
      EXPECT_GT(ms, 0);
      EXPECT_GT(of_ddp, 0);
      first_losses.push_back(first);
    }
    EXPECT_EQ(first_losses, std::vector<double>(3, first_losses[0]));
  }
}

TEST(Resnet18, BatchNormOverAllWorkersIsNotThatOverEachWorkersOwnBatch) {
  const Arguments options{"--compare", "--batch-size=8", "--steps=2", "--warmup=0"};
  EXPECT_NE(number_after(output_of(2, joined(options, {"--batch-norm=sync"})), "ddp "),
            number_after(output_of(2, joined(options, {"--batch-norm=plain"})), "ddp "));
}

TEST(Resnet18, GoesOnAfterTheLastEpochWithTheSameBits) {
  const TemporaryDirectory directory;
  const Arguments kept{"--checkpoint-dir=" + directory / "run",
                       "--metrics=" + directory / "m.jsonl"};
  const std::string expected = digest_after(output_of(2, {"--epochs=2"}));
  EXPECT_THAT(output_of(2, joined({"--epochs=1"}, kept)), Not(HasSubstr("resumed")));
  const std::string resumed = output_of(2, joined({"--epochs=2"}, kept));
  EXPECT_THAT(resumed, AllOf(HasSubstr("resumed after epoch 1 from "), HasSubstr("epoch  2 "),
                             Not(HasSubstr("epoch  1 "))));
  EXPECT_EQ(digest_after(resumed), expected);
  std::ifstream metrics(directory / "m.jsonl");
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(metrics, line);) lines.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[1]["epoch"], 2);
  EXPECT_EQ(lines[1]["step"], 44);  // 1437 images are 22 full batches for each of two workers
  EXPECT_LT(lines[1]["loss"], lines[0]["loss"]);
}

TEST(Resnet18, HelpShowsACommandAndTheOptions) {
  ChildProcess help({program("resnet18"), "--help"});
  EXPECT_EQ(help.wait(seconds(30)), 0);
  for (const char* words :
       {"ddprun --standalone --nproc-per-node=2 resnet18", "--data", "--width", "--batch-norm",
        "--averaging", "--checkpoint-dir", "--metrics", "--compare", "--record", "--breakdown"})
    EXPECT_THAT(help.out(), HasSubstr(words));
}

TEST(Resnet18, BadOptionsAndFilesAreOneLine) {
  for (const auto& [options, exit_code] : {std::pair{Arguments{"--averaging=never"}, 2},
                                           {Arguments{"--batch-norm=none"}, 2},
                                           {Arguments{"--width=0"}, 2},
                                           {Arguments{"--steps=0"}, 2},
                                           {Arguments{"--steps=3"}, 2},
                                           {Arguments{"--record=run"}, 2},
                                           {Arguments{"--compare", "--metrics=m.jsonl"}, 2},
                                           {Arguments{"--compare", "--breakdown"}, 2},
                                           {Arguments{"--compare", "--record=/proc/run"}, 1},
                                           {Arguments{"--metrics=/nowhere/m.jsonl"}, 1},
                                           {Arguments{"--batch-size=1"}, 2},
                                           {Arguments{"--batch-size=1438"}, 1}}) {
    ChildProcess refused(joined({program("resnet18")}, options));
    EXPECT_EQ(refused.wait(seconds(30)), exit_code) << options.back();
    EXPECT_THAT(refused.err(), StartsWith("resnet18: ")) << options.back();
    EXPECT_EQ(std::ranges::count(refused.err(), '\n'), 1) << refused.err();
  }
}

}  // namespace
}  // namespace ddprun
