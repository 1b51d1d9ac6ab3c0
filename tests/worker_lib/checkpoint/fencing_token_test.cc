// Tests runs that take a checkpoint directory from one another, and a run that was cut off and
// does not know it.
#include "worker_lib/checkpoint/fencing_token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/final_error.h"
#include "base/worker_env.h"
#include "rendezvous/protocol/core/worker_end.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/worker_lib/support/verified_data.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::listing;
using testing_support::TemporaryDirectory;
using testing_support::verified_data;

Result<AnnouncedCheckpoint> announce(CheckpointDirectory& run, std::int64_t step,
                                     const std::string& data) {
  return run.announce({.step = step, .generation = run.own_claim().generation},
                      [&](AtomicFile& file) { file.write(data.data(), data.size()); });
}

std::vector<std::string> checkpoint_files(const std::string& path) {
  std::vector<std::string> names = listing(path);
  std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
  return names;
}

class FencingTokens : public testing::Test {
 protected:
  FencingTokens() { EXPECT_TRUE(old_run_.take(0, "old")); }

  TemporaryDirectory temporary_;
  CheckpointDirectory old_run_{temporary_.path()};
  CheckpointDirectory new_run_{temporary_.path()};
};

TEST_F(FencingTokens, AreReadAsTheyWereWritten) {
  const FencingToken claim{.number = 3,
                           .generation = 2,
                           .owner = "ab",
                           .accepted = {{5, "five"}, {7, "seven"}},
                           .job = "job A",
                           .displaced = {{"job B", 3}, {"job C", 0}}};
  ASSERT_TRUE(write_claim(temporary_.path(), claim));
  EXPECT_EQ(*read_claim(temporary_.path()), claim);
  std::ofstream(temporary_ / ".claim.json") << "{\"claim\": 4";
  EXPECT_EQ(read_claim(temporary_.path())->number, 0);
  fs::remove(temporary_ / ".claim.json");
  EXPECT_EQ(read_claim(temporary_.path())->number, 0);
}

TEST_F(FencingTokens, ARunThatWasCutOffCanAnnounceNothing) {
  ASSERT_TRUE(announce(old_run_, 10, "ten"));
  ASSERT_TRUE(new_run_.take(1, "new"));
  const auto late = announce(old_run_, 20, "twenty");
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().kind, ErrorKind::kStopped);
  EXPECT_THAT(late.error().message(),
              AllOf(HasSubstr("step-000000000020.pt"), HasSubstr("a later run (generation 1)"),
                    HasSubstr("from this one (generation 0)")));
  EXPECT_THAT(checkpoint_files(temporary_.path()),
              ElementsAre("step-000000000010.json", "step-000000000010.pt"));
  EXPECT_TRUE(new_run_.read_manifest(10)) << "it was there";
  EXPECT_TRUE(announce(new_run_, 15, "fifteen"));
  EXPECT_FALSE(old_run_.hold("remove old checkpoints"));
}

// The old run has written its data and is about to announce it when the new run comes.
TEST_F(FencingTokens, NotEvenWhatItHasOnTheDiskAlready) {
  const auto written =
      old_run_.write_data("step-000000000020.pt", [](AtomicFile& file) { file.write("x", 1); });
  ASSERT_TRUE(written);
  ASSERT_TRUE(new_run_.take(1, "new"));
  EXPECT_FALSE(old_run_.announce({.step = 20, .files = {*written}}));
  EXPECT_THAT(checkpoint_files(temporary_.path()), ElementsAre("step-000000000020.pt"))
      << "a file of this name may be the new run's";
  ASSERT_TRUE(new_run_.prepare());
  EXPECT_THAT(checkpoint_files(temporary_.path()), IsEmpty());
}

// The old run writes its manifest while the new run writes its own for the same step. The old
// one must not replace the new one.
TEST_F(FencingTokens, TheNewRunsCheckpointOfTheSameStepStays) {
  ASSERT_TRUE(old_run_.announce({.step = 20}, [&](AtomicFile& file) {
    file.write("old", 3);
    // Nothing else happens in this save. In the next one, the directory is taken during the
    // write.
  }));
  bool is_taken = false;
  const auto late = old_run_.announce({.step = 30}, [&](AtomicFile& file) {
    file.write("old", 3);
    is_taken = new_run_.take(1, "new") && announce(new_run_, 30, "new");
  });
  ASSERT_TRUE(is_taken);
  EXPECT_FALSE(late);
  const auto checkpoint = new_run_.read_manifest(30);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto data = verified_data(new_run_, checkpoint->manifest);
  ASSERT_TRUE(data) << data.error().message();
  EXPECT_EQ(*data, "new");
}

// Without locks, a manifest may get through between the check of the claim and the rename.
TEST_F(FencingTokens, AManifestThatSlipsThroughDoesNotCount) {
  ASSERT_TRUE(announce(old_run_, 10, "ten"));
  ASSERT_TRUE(new_run_.take(1, "new"));
  CheckpointDirectory blind(temporary_.path());  // does not check the claim
  ASSERT_TRUE(announce(blind, 20, "late"));
  ASSERT_TRUE(announce(blind, 10, "another ten"));
  for (const std::int64_t step : {10, 20}) {
    const auto read = new_run_.read_manifest(step);
    ASSERT_FALSE(read) << step;
    EXPECT_EQ(read.error().kind, ErrorKind::kStopped);
    EXPECT_THAT(read.error().message(),
                HasSubstr("a run of generation 0 announced it after a later run (generation 1) had "
                          "taken the directory: it does not count"));
  }
  ASSERT_TRUE(new_run_.forget(20));
  EXPECT_FALSE(fs::exists(temporary_ / "step-000000000020.pt"));
}

TEST_F(FencingTokens, WhereNoFileCanBeLockedTheyStillCount) {
  fs::remove(temporary_ / ".claim.lock");
  fs::create_directory(temporary_ / ".claim.lock");  // it cannot be opened, so it is not locked
  ASSERT_TRUE(announce(old_run_, 10, "ten"));
  ASSERT_TRUE(new_run_.take(1, "new"));
  EXPECT_FALSE(announce(old_run_, 20, "late"));
  CheckpointDirectory blind(temporary_.path());
  ASSERT_TRUE(announce(blind, 30, "late"));
  EXPECT_FALSE(new_run_.read_manifest(30));
  ASSERT_TRUE(announce(new_run_, 20, "new"));
  EXPECT_TRUE(new_run_.read_manifest(20));
  EXPECT_TRUE(fs::is_directory(temporary_ / ".claim.lock"));
}

TEST_F(FencingTokens, ARunKeepsADirectoryThatItHasAndTheNextAcceptsWhatCounts) {
  CheckpointDirectory same(temporary_.path());
  ASSERT_TRUE(same.take(0, "old"));
  EXPECT_EQ(same.own_claim().number, old_run_.own_claim().number);
  ASSERT_TRUE(announce(same, 10, "ten"));
  ASSERT_TRUE(announce(old_run_, 20, "twenty"));
  ASSERT_TRUE(new_run_.take(0, "another process"));
  EXPECT_EQ(new_run_.own_claim().number, old_run_.own_claim().number + 1);
  EXPECT_EQ(new_run_.own_claim().accepted.size(), 2u);
  EXPECT_FALSE(announce(same, 30, "thirty"));
}

TEST_F(FencingTokens, ADamagedClaimIsReplacedByOneWithAHigherNumberThanAnyManifest) {
  ASSERT_TRUE(new_run_.take(1, "new"));
  ASSERT_TRUE(announce(new_run_, 10, "ten"));
  std::ofstream(temporary_ / ".claim.json") << "";
  CheckpointDirectory third(temporary_.path());
  ASSERT_TRUE(third.take(2, "third"));
  EXPECT_EQ(third.own_claim().number, new_run_.own_claim().number + 1);
  EXPECT_TRUE(third.read_manifest(10));
}

TEST_F(FencingTokens, TheDirectoryIsNotTakenWhileAManifestCannotBeRead) {
  // A link to itself: open() fails, even for root.
  fs::create_symlink("step-000000000010.json", temporary_ / "step-000000000010.json");
  const Result<void> taken = new_run_.take(1, "new");
  ASSERT_FALSE(taken);
  EXPECT_THAT(taken.error().message(),
              AllOf(HasSubstr("take the directory"), HasSubstr("step-000000000010.json")));
}

// The manifest exceeds the bounds of the version that takes the directory, but not those of a
// later version. Here it is the same file, which is nested too deeply for a while.
TEST_F(FencingTokens, WhatThisVersionCannotReadCountsForALaterOne) {
  ASSERT_TRUE(announce(old_run_, 10, "ten"));
  ASSERT_TRUE(announce(old_run_, 20, "twenty"));
  const std::string path = temporary_ / "step-000000000020.json";
  const std::string whole = testing_support::read_file(path);
  std::ofstream(path) << std::string(1 << 20, '[');
  CheckpointDirectory third(temporary_.path());
  ASSERT_TRUE(new_run_.take(1, "new"));
  ASSERT_TRUE(third.take(2, "third"));
  std::ofstream(path) << whole;
  const auto read = third.read_manifest(20);
  EXPECT_TRUE(read) << read.error().message();
  EXPECT_TRUE(third.read_manifest(10));
}

// The lock may be missing or may have expired. Then the old run may be stopped between its
// check and the removal.
TEST_F(FencingTokens, ARunThatWasCutOffRemovesNothing) {
  ASSERT_TRUE(announce(old_run_, 10, "ten"));
  const Result<ClaimLock> lock = old_run_.hold("remove old checkpoints");
  ASSERT_TRUE(lock);
  ASSERT_TRUE(write_claim(temporary_.path(), {.number = 7, .generation = 1, .owner = "new"}));
  EXPECT_EQ(old_run_.forget(10).error().kind, ErrorKind::kStopped);
  old_run_.discard({"step-000000000010.pt"});
  EXPECT_THAT(checkpoint_files(temporary_.path()),
              ElementsAre("step-000000000010.json", "step-000000000010.pt"));
}

TEST_F(FencingTokens, AJobThatLostTheDirectoryToAnotherDoesNotTakeItBack) {
  TemporaryDirectory temporary;
  CheckpointDirectory first(temporary.path()), second(temporary.path());
  ASSERT_TRUE(first.take(0, "first's process", "job A"));
  ASSERT_TRUE(second.take(0, "second's process", "job B"));
  EXPECT_THAT(
      announce(first, 10, "ten").error().message(),
      AllOf(HasSubstr("job 'job B' has taken the checkpoint directory"), HasSubstr(kFinalError)));
  CheckpointDirectory restarted(temporary.path());
  const Result<void> taken = restarted.take(1, "first's next process", "job A");
  ASSERT_FALSE(taken);
  EXPECT_EQ(taken.error().kind, ErrorKind::kStopped);
  EXPECT_THAT(taken.error().message(),
              AllOf(HasSubstr(temporary.path()),
                    HasSubstr("job 'job B' has taken the checkpoint directory"),
                    HasSubstr("end one of the two jobs"), HasSubstr(kFinalError)));
  EXPECT_TRUE(announce(second, 10, "ten")) << "the second has it still";
  CheckpointDirectory second_restarted(temporary.path());
  EXPECT_TRUE(second_restarted.take(1, "second's next process", "job B"));
  EXPECT_FALSE(restarted.take(2, "first's last process", "job A"));
  EXPECT_TRUE(restarted.take(0, "submitted again", "job A"));
  EXPECT_FALSE(second_restarted.take(2, "second's last process", "job B"));
}

// ddprun keeps kMaxTailLineBytes of each line that a program prints.
TEST_F(FencingTokens, TheWordsThatForbidARestartAreNotCutOffByALongPath) {
  fs::path directory = temporary_.path();
  for (int i = 0; i < 10; ++i) directory /= std::string(200, 'x');
  ASSERT_TRUE(fs::create_directories(directory));
  CheckpointDirectory first(directory), second(directory), restarted(directory);
  const std::string job = std::string(32, 'a') + ":0123456789ab", other = job + "b";
  ASSERT_TRUE(first.take(0, "first's process", job));
  ASSERT_TRUE(second.take(0, "second's process", other));
  const auto kept = [](const Error& error) {
    return ("a_program: " + error.message()).substr(0, kMaxTailLineBytes - 3);
  };
  EXPECT_THAT(kept(announce(first, 10, "ten").error()), HasSubstr(kFinalError));
  EXPECT_THAT(kept(restarted.take(1, "first's next process", job).error()), HasSubstr(kFinalError));
}

// The first generation of a submission may end before it reaches the checkpoints.
TEST_F(FencingTokens, AJobThatIsSubmittedAgainMayTakeTheDirectoryInAnyGeneration) {
  const auto name_of = [](const char* submission) {
    EXPECT_EQ(setenv("DDPRUN_SUBMISSION", submission, 1), 0);
    const std::string name = job_name("job A");
    EXPECT_EQ(name, job_name("job A")) << "the same in all generations";
    return name;
  };
  const std::string first_time = name_of("service-1"), again = name_of("service-2");
  EXPECT_NE(first_time, again);
  EXPECT_NE(job_name(kDefaultJobId), "");
  unsetenv("DDPRUN_SUBMISSION");
  EXPECT_EQ(job_name("job A"), "job A");
  EXPECT_EQ(job_name(kDefaultJobId), "") << "nothing tells the jobs apart";
  TemporaryDirectory temporary;
  CheckpointDirectory first(temporary.path()), second(temporary.path());
  ASSERT_TRUE(first.take(0, "first's process", first_time));
  ASSERT_TRUE(second.take(0, "second's process", "job B"));
  EXPECT_FALSE(CheckpointDirectory(temporary.path()).take(1, "first's next process", first_time));
  CheckpointDirectory third(temporary.path());
  EXPECT_TRUE(third.take(1, "of the new submission", again)) << "its generation 0 has died";
  EXPECT_FALSE(second.take(1, "second's next process", "job B"));
}

TEST_F(FencingTokens, WhatIsNoClaimIsNeitherReadNorWaitedFor) {
  const std::string path = temporary_ / ".claim.json";
  ASSERT_TRUE(announce(old_run_, 10, "ten"));
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_claim(temporary_.path())->number, 0);
  fs::remove(path);
  std::ofstream(path) << std::string(1 << 20, '[');
  EXPECT_EQ(read_claim(temporary_.path())->number, 0);
  std::ofstream(path) << R"({"claim": -1, "generation": 0, "owner": "x", "accepted": []})";
  EXPECT_EQ(read_claim(temporary_.path())->number, 0);
  fs::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_EQ(read_claim(temporary_.path())->number, 0);
  EXPECT_TRUE(new_run_.read_manifest(10));
  EXPECT_TRUE(new_run_.take(1, "new"));
  EXPECT_TRUE(new_run_.read_manifest(10));
}

TEST_F(FencingTokens, WhatKilledTakesLeftIsRemoved) {
  std::ofstream(temporary_ / ".claim.json.00ff.tmp") << "x";
  ASSERT_TRUE(new_run_.take(1, "new"));
  EXPECT_THAT(listing(temporary_.path()), ElementsAre(".claim.json", ".claim.lock"));
}

}  // namespace
}  // namespace ddprun
