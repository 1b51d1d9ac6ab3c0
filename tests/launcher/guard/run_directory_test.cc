#include "launcher/guard/run_directory.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::listing;
using testing_support::TemporaryDirectory;

TEST(RunDirectory, IsNotAbandonedAsLongAsItsLockIsHeld) {
  const TemporaryDirectory base;
  Result<RunDirectory> run = make_run_directory(base.path());
  ASSERT_TRUE(run);
  EXPECT_EQ(listing(base.path()).size(), 1u) << "and nothing else is left";
  EXPECT_TRUE(abandoned_in(base.path()).empty());
  const UniqueFd of_another_process(dup(run->lock.get()));
  run->lock.reset();
  EXPECT_TRUE(abandoned_in(base.path()).empty()) << "one of the guards lives";
}

TEST(RunDirectory, IsAbandonedWhenNobodyHoldsItsLock) {
  const TemporaryDirectory base;
  Result<RunDirectory> run = make_run_directory(base.path());
  ASSERT_TRUE(run);
  std::ofstream(run->path + "/error.json") << "{}";
  run->lock.reset();
  std::vector<RunDirectory> found = abandoned_in(base.path());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].path, run->path);
  EXPECT_TRUE(abandoned_in(base.path()).empty()) << "who has found it, owns it";
  remove_files(found[0].path);
  EXPECT_TRUE(listing(base.path()).empty());
}

TEST(RunDirectory, WhatAKilledRunHadOnlyBegunIsAbandoned) {
  const TemporaryDirectory base;
  std::filesystem::create_directory(base / ".ddprun.abcdef");
  EXPECT_EQ(abandoned_in(base.path()).size(), 1u);
}

// Users also have directories with names such as ddprun_models.
TEST(RunDirectory, WhatDdprunHasNotMadeIsNotAbandonedWhateverItsName) {
  const TemporaryDirectory base;
  for (const char* name : {"ddprun_models", ".ddprun.config"}) {
    std::filesystem::create_directory(base / name);
    std::ofstream(base / name + "/precious") << "mine";
  }
  std::filesystem::create_directory(base / "ddprun_output");
  EXPECT_TRUE(abandoned_in(base.path()).empty());
}

TEST(RunDirectory, LinksAndOtherNamesAreNobodysRun) {
  const TemporaryDirectory base;
  const TemporaryDirectory elsewhere;
  std::filesystem::create_directory_symlink(elsewhere.path(), base / "ddprun_abcdef");
  for (const char* name : {"ddprun_abcdefgh", "ddprun", "ddprun_", "other_abcdef"}) {
    std::filesystem::create_directory(base / name);
  }
  std::ofstream(base / "ddprun_abcdeg") << "a file";
  EXPECT_TRUE(abandoned_in(base.path()).empty());
}

TEST(RunDirectory, OfAnotherUserIsLeftAlone) {
  if (geteuid() != 0) GTEST_SKIP() << "a directory of another user needs root";
  const TemporaryDirectory base;
  Result<RunDirectory> run = make_run_directory(base.path());
  ASSERT_TRUE(run);
  ASSERT_EQ(chown(run->path.c_str(), 12345, 12345), 0);
  run->lock.reset();
  EXPECT_TRUE(abandoned_in(base.path()).empty());
}

TEST(RunDirectory, APlaceThatIsNotThereIsNamed) {
  const Result<RunDirectory> run = make_run_directory("/no/such/place");
  ASSERT_FALSE(run);
  EXPECT_EQ(run.error().doing, "make a directory in /no/such/place");
  EXPECT_TRUE(abandoned_in("/no/such/place").empty());
}

}  // namespace
}  // namespace ddprun
