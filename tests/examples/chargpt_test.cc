// Tests the example chargpt with real processes: it learns, takes the same steps with any
// number of workers, and has the same bits when it is resumed. Also tests what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/read_file.h"
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
using testing_support::read_file;
using testing_support::TemporaryDirectory;

const std::string kText = DDPRUN_SOURCE_DIR "/tests/data/chargpt.txt";
const Arguments kTiny{"--block=16",    "--layers=2", "--heads=2", "--width=32",
                      "--lr-warmup=5", "--lr=0.01",  "--data",    kText};

Arguments command(int workers, const Arguments& options) {
  Arguments start;
  if (workers > 1)
    start = {program("ddprun"), "--standalone", "--nproc-per-node=" + std::to_string(workers)};
  return joined(start, {program("chargpt")}, joined(kTiny, options));
}

std::string output_of(int workers, const Arguments& options) {
  ChildProcess job(command(workers, options));
  EXPECT_EQ(job.wait(seconds(50)), 0) << job.out() << job.err();
  return job.out();
}

std::vector<nlohmann::json> metrics_of(int workers, const Arguments& options) {
  const TemporaryDirectory directory;
  output_of(workers, joined(options, {"--metrics=" + directory / "m"}));
  std::istringstream lines(read_file(directory / "m"));
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
  return all;
}

// The loss starts at about ln 59, which is a guess among the characters of the text.
TEST(Chargpt, LearnsToWriteLikeTheText) {
  const std::string output = output_of(1, {"--steps=300", "--eval-every=150", "--sample=80"});
  EXPECT_LT(number_after(output, "step 150  loss "), 3.0) << output;
  const std::string last = output.substr(output.find("step 300  loss "));
  EXPECT_LT(number_after(last, "step 300  loss "), 2.5) << output;
  EXPECT_LT(number_after(last, "val_loss "), 2.45) << output;
  // The sample lies between the last step and the digest, and consists of characters of the
  // text.
  const std::size_t begin = last.find('\n') + 1, end = last.find("\nsha256 ");
  ASSERT_NE(end, std::string::npos) << output;
  const std::string sample = last.substr(begin, end - begin);
  EXPECT_GE(sample.size(), 80u);
  EXPECT_GE(std::ranges::count(sample, ' '), 5) << sample;
  EXPECT_EQ(output.find('\r'), std::string::npos);  // without a terminal there is no progress bar
}

// A step takes 600 of 8,840 blocks, so step 15 begins another epoch.
TEST(Chargpt, AnyNumberOfWorkersTakesTheSameSteps) {
  const Arguments options{"--steps=18", "--batch-size=600", "--eval-every=6"};
  const std::vector<nlohmann::json> alone = metrics_of(1, options);
  ASSERT_EQ(alone.size(), 3u);
  for (const int workers : {2, 3}) {
    const std::vector<nlohmann::json> together = metrics_of(workers, options);
    ASSERT_EQ(together.size(), alone.size());
    for (std::size_t i = 0; i < alone.size(); ++i) {
      EXPECT_EQ(together[i]["step"], 6 * (i + 1));
      for (const char* name : {"loss", "val_loss"})
        EXPECT_NEAR(together[i][name].get<double>(), alone[i][name].get<double>(), 1e-5)
            << workers << " workers, step " << 6 * (i + 1);
    }
  }
}

// Step 14 is the last step of its epoch.
TEST(Chargpt, GoesOnWithinAnEpochAndBehindOneWithTheSameBits) {
  const Arguments options{"--batch-size=600", "--lr-decay-steps=16", "--checkpoint-every=7"};
  const std::string expected = digest_after(output_of(2, joined(options, {"--steps=16"})));
  const TemporaryDirectory directory;
  const std::string checkpoints = "--checkpoint-dir=" + directory / "run";
  std::string output;
  for (const std::string steps : {"3", "14", "16"}) {
    output = output_of(2, joined(options, {"--steps=" + steps, checkpoints}));
    EXPECT_EQ(output.find("resumed at step ") == std::string::npos, steps == "3") << output;
  }
  EXPECT_THAT(output, HasSubstr("resumed at step 14 from "));
  EXPECT_EQ(digest_after(output), expected);
  // No steps are left to do.
  EXPECT_EQ(digest_after(output_of(2, joined(options, {"--steps=16", checkpoints}))), expected);
}

TEST(Chargpt, LeavesWhenItIsAskedToAndGoesOnWithTheSameBits) {
  const TemporaryDirectory directory;
  const Arguments options{"--lr-decay-steps=100000", "--eval-every=30",
                          "--checkpoint-every=100000"};
  const Arguments checkpoints{"--checkpoint-dir=" + directory / "run"};
  Arguments asked = command(2, joined(options, {"--steps=100000"}, checkpoints));
  asked.insert(asked.begin() + 1, "--checkpoint-signal=USR1");
  ChildProcess job(asked);
  ASSERT_TRUE(job.wait_for_out("step 30  loss ", seconds(30))) << job.err();
  job.signal(SIGUSR1);
  EXPECT_EQ(job.wait(seconds(30)), 75) << job.out() << job.err();
  EXPECT_THAT(job.out(), Not(HasSubstr("sha256")));
  const auto left = static_cast<int>(number_after(job.out(), "asked to leave at step "));

  const Arguments further = joined(options, {"--steps=" + std::to_string(left + 5)});
  const std::string output = output_of(2, joined(further, checkpoints));
  EXPECT_THAT(output, HasSubstr("resumed at step " + std::to_string(left) + " from "));
  EXPECT_EQ(digest_after(output), digest_after(output_of(2, further)));
}

TEST(Chargpt, MeasuresWhereTheTimeGoes) {
  const std::string output = output_of(2, {"--breakdown", "--steps=20", "--warmup=3"});
  EXPECT_THAT(output, Not(HasSubstr("val_loss")));
  // The last line, after the name of the rank that ddprun puts before it.
  const std::string last = output.substr(output.rfind('\n', output.size() - 2) + 1);
  const nlohmann::json measured = nlohmann::json::parse(last.substr(last.find('{')));
  double step_ms = 0;
  for (const char* phase : {"data", "forward", "backward", "optimizer"}) {
    EXPECT_GT(measured.at("breakdown_ms").at(phase).get<double>(), 0);
    step_ms += measured["breakdown_ms"][phase].get<double>();
  }
  EXPECT_NEAR(measured.at("samples_per_second").get<double>(), 12 * 1000 / step_ms, 1e-6 / step_ms);
}

// --- what is refused ---

void expect_refusal(const Arguments& options, int exit_code, const std::string& words) {
  ChildProcess refused(joined({program("chargpt")}, options));
  EXPECT_EQ(refused.wait(seconds(30)), exit_code) << refused.out() << refused.err();
  EXPECT_THAT(refused.err(), AllOf(StartsWith("chargpt: "), HasSubstr(words)));
  EXPECT_EQ(std::ranges::count(refused.err(), '\n'), 1) << refused.err();
}

TEST(Chargpt, BadOptionsAreOneLineAndExitCodeTwo) {
  expect_refusal({}, 2, "--data is required");
  expect_refusal({"--data=/nowhere"}, 2, "/nowhere");
  expect_refusal({"--data=/"}, 2, "--data");
  for (const std::string option :
       {"--steps=0", "--width=none", "--sample=-1", "--init=/nowhere", "--nonsense"})
    expect_refusal(joined(kTiny, {option}), 2, option.substr(0, option.find('=')));
  expect_refusal({"--data", kText, "--width=100", "--heads=3"}, 2,
                 "--width: 100 does not divide by --heads 3");
  expect_refusal(joined(kTiny, {"--lr-decay-steps=9", "--steps=10"}), 2,
                 "--lr-decay-steps: 9 is less than 10 steps");
  expect_refusal(joined(kTiny, {"--warmup=3"}), 2, "--breakdown");
}

TEST(Chargpt, BadFilesAreOneLineThatNamesThemAndWhere) {
  const TemporaryDirectory directory;
  const std::string path = directory / "text";
  const auto expect = [&](const std::string& bytes, const std::string& words) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
    expect_refusal({"--data", path, "--block=16"}, 1, "read " + path + ": " + words + "\n");
  };
  expect("", "the file is empty");
  expect("caf\xe9 noir", "at offset 3: no character of UTF-8 (it would begin with byte 0xe9)");
  expect("caf\xc3", "at offset 4: the file ends within a character of 2 bytes");
  expect(std::string(160, 'a'), "its last tenth has 16 characters; blocks of 16 need at least 17");
  std::ofstream(path, std::ios::trunc) << std::string(200, 'a');
  expect_refusal({"--data", path, "--block=16", "--batch-size=165"}, 1,
                 path + " has 164 blocks to train on, less than --batch-size 165\n");
  expect_refusal(joined(kTiny, {"--init", kText}), 1, kText);
  expect_refusal(joined(kTiny, {"--metrics=/nowhere/m"}), 1, "/nowhere/m");
  expect_refusal(joined(kTiny, {"--save-init=/nowhere/w"}), 1, "/nowhere/w");
}

TEST(Chargpt, ABatchThatDoesNotDivideByTheWorkersIsRefused) {
  ChildProcess job(command(2, {"--batch-size=7"}));
  EXPECT_EQ(job.wait(seconds(30)), 1) << job.out() << job.err();
  EXPECT_THAT(job.err(), HasSubstr("a batch of 7 does not divide among 2 ranks; 6 and 8 do"));
}

// The other text has the same characters in another order.
TEST(Chargpt, ACheckpointOfAnotherTextIsRefused) {
  const TemporaryDirectory directory;
  const std::string checkpoints = "--checkpoint-dir=" + directory / "run";
  output_of(1, {"--steps=2", checkpoints});
  std::string text = read_file(kText);
  std::ranges::rotate(text, text.begin() + 4);
  std::ofstream(directory / "other", std::ios::binary) << text;
  Arguments options = kTiny;
  options.back() = directory / "other";
  expect_refusal(joined(options, {"--steps=2", checkpoints}), 1,
                 "it was trained on the data 'text with SHA-256 ");
}

TEST(Chargpt, HelpNamesEveryOption) {
  ChildProcess help({program("chargpt"), "--help"});
  EXPECT_EQ(help.wait(seconds(30)), 0);
  for (const char* option : {"--data",           "--steps",
                             "--batch-size",     "--block",
                             "--layers",         "--heads",
                             "--width",          "--lr",
                             "--lr-warmup",      "--lr-decay-steps",
                             "--seed",           "--eval-every",
                             "--checkpoint-dir", "--checkpoint-every",
                             "--metrics",        "--sample",
                             "--init",           "--save-init",
                             "--breakdown",      "--warmup"})
    EXPECT_THAT(help.out(), HasSubstr(option));
}

}  // namespace
}  // namespace ddprun
