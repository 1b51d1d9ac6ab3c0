// Tests the example mnist_convnet with real processes: it learns, and has the same bits when it
// is resumed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

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
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::digest_after;
using testing_support::joined;
using testing_support::number_after;
using testing_support::program;
using testing_support::TemporaryDirectory;

std::string output_of_two(const Arguments& options) {
  ChildProcess job(
      joined({program("ddprun"), "--standalone", "--nproc-per-node=2", program("mnist_convnet")},
             options));
  EXPECT_EQ(job.wait(seconds(120)), 0) << job.out() << job.err();
  return job.out();
}

TEST(MnistConvnet, LearnsTheDigitsWithTwoWorkers) {
  const std::string output = output_of_two({});
  const std::size_t last = output.find("epoch 40 ");
  ASSERT_NE(last, std::string::npos) << output;
  EXPECT_GE(number_after(output.substr(last), "accuracy "), 0.97) << output;
  EXPECT_GT(number_after(output, "speed-up of 2 workers over 1: "), 0);
  EXPECT_EQ(output.find('\r'), std::string::npos);  // without a terminal there is no progress bar
}

TEST(MnistConvnet, GoesOnAfterTheLastEpochWithTheSameBits) {
  const TemporaryDirectory directory;
  const std::string checkpoints = "--checkpoint-dir=" + directory / "run";
  const std::string expected = digest_after(output_of_two({"--epochs=4"}));
  EXPECT_THAT(output_of_two({"--epochs=2", checkpoints}), Not(HasSubstr("resumed")));
  const std::string resumed = output_of_two({"--epochs=4", checkpoints});
  EXPECT_THAT(resumed, AllOf(HasSubstr("resumed after epoch 2 from "), HasSubstr("epoch  3 "),
                             Not(HasSubstr("epoch  2 "))));
  EXPECT_EQ(digest_after(resumed), expected);
}

TEST(MnistConvnet, BadOptionsAndFilesAreOneLine) {
  for (const auto& [option, exit_code] :
       {std::pair{"--gamma=0", 2}, {"--epochs=0", 2}, {"--metrics=/nowhere/m.jsonl", 1}}) {
    ChildProcess refused({program("mnist_convnet"), option});
    EXPECT_EQ(refused.wait(seconds(30)), exit_code) << option;
    EXPECT_THAT(refused.err(), testing::StartsWith("mnist_convnet: "));
    EXPECT_EQ(std::ranges::count(refused.err(), '\n'), 1) << refused.err();
  }
}

}  // namespace
}  // namespace ddprun
