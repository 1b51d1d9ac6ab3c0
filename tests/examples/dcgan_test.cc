// Tests the example dcgan with real processes: the same bits after kills, and the contents of
// its checkpoint.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <filesystem>

#include "tests/support/child_process.h"
#include "tests/support/eventually.h"
#include "tests/support/number_after.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::Arguments;
using testing_support::ChildProcess;
using testing_support::digest_after;
using testing_support::eventually;
using testing_support::joined;
using testing_support::program;
using testing_support::TemporaryDirectory;

std::string output_of_two(const Arguments& options) {
  ChildProcess job(joined({program("ddprun"), "--standalone", "--nproc-per-node=2",
                           "--max-restarts=1", program("dcgan"), "--epochs=2"},
                          options));
  EXPECT_EQ(job.wait(seconds(120)), 0) << job.out() << job.err();
  return job.out();
}

TEST(Dcgan, EndsWithTheSameBitsWhenAWorkerWasKilled) {
  const TemporaryDirectory directory;
  const std::string expected = digest_after(output_of_two({}));
  EXPECT_FALSE(expected.empty());
  const std::string checkpoints = "--checkpoint-dir=" + directory / "run";
  const std::string killed =
      output_of_two({checkpoints, "--checkpoint-every=10", "--crash-rank=1", "--crash-step=33"});
  EXPECT_THAT(killed, HasSubstr("resumed at step "));
  EXPECT_EQ(digest_after(killed), expected);
  ChildProcess show({program("ddprun-ckpt"), "show", directory / "run"});
  EXPECT_EQ(show.wait(), 0) << show.err();
  EXPECT_THAT(show.out(), AllOf(HasSubstr("models"), HasSubstr("generator"),
                                HasSubstr("discriminator"), HasSubstr("fixed_noise")));
}

// What the workers of the second job do first.
const std::string kStart = "exec \"$@\"";
// Generation 0 ends before it has a CheckpointManager.
const std::string kDieInTheFirstStart = "[ $DDPRUN_GENERATION != 0 ] || exit 3; " + kStart;

// The first job ends with the reason and is not restarted. The second one goes on.
void run_two_jobs_in_one_directory(int ranks, const std::string& second_starts = kStart) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks, " + second_starts);
  const TemporaryDirectory directory;
  const auto start = [&](const std::string& script) {
    return std::make_unique<ChildProcess>(Arguments{
        program("ddprun"), "--standalone", "--nproc-per-node=" + std::to_string(ranks),
        "--max-restarts=2", "sh", "-c", script, "sh", program("dcgan"), "--checkpoint-every=5",
        "--checkpoint-dir=" + directory / "run", "--epochs=100000"});
  };
  auto first = start(kStart);
  ASSERT_TRUE(eventually([&] { return std::filesystem::exists(directory / "run/.claim.json"); }))
      << first->err();
  auto second = start(second_starts);
  EXPECT_TRUE(first->wait(seconds(60)).value_or(0) != 0) << first->err();
  EXPECT_THAT(first->err(),
              AllOf(HasSubstr("has taken "), HasSubstr("end one of the two"),
                    HasSubstr("not restarted"), testing::Not(HasSubstr("did not restore"))));
  EXPECT_FALSE(second->wait(std::chrono::milliseconds(1))) << second->err();
  second->signal(SIGTERM);
  EXPECT_TRUE(second->wait(seconds(30)));
  const bool dies_once = second_starts == kDieInTheFirstStart;
  EXPECT_EQ(second->err().find("restart 1 of 2") != std::string::npos, dies_once) << second->err();
  EXPECT_THAT(second->err(), testing::Not(HasSubstr("restart 2 of 2"))) << "it was left alone";
}

TEST(Dcgan, TheSecondOfTwoJobsInOneDirectoryHasIt) { run_two_jobs_in_one_directory(1); }

TEST(Dcgan, TheSecondOfTwoJobsOfTwoRanksHasItToo) { run_two_jobs_in_one_directory(2); }

TEST(Dcgan, TheSecondOfTwoJobsHasItAlsoIfItsFirstGenerationDiesInItsStart) {
  run_two_jobs_in_one_directory(1, kDieInTheFirstStart);
}

}  // namespace
}  // namespace ddprun
