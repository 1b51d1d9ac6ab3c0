#include "launcher/guard/run_cgroup.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "launcher/worker/shared_clone.h"
#include "tests/support/clone_is_fork.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

using testing_support::kCloneIsFork;
using testing_support::kNoSharedClone;

class RunCgroup : public testing::Test {
 protected:
  void SetUp() override {
    if (kCloneIsFork) GTEST_SKIP() << kNoSharedClone;
    run_ = make_run_cgroup();
    if (!run_) GTEST_SKIP() << "no control group (v2) can be made here";
  }
  void TearDown() override { EXPECT_TRUE(!run_ || remove_cgroup(run_->path)); }

  // Starts a process in the group that ignores all signals that a process can ignore.
  pid_t sleeper_in(const std::string& cgroup) const {
    const UniqueFd directory(open(cgroup.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    Result<ClonedChild> child = start_sharing_memory(
        directory.get(),
        [](void*) {
          // Not on the stack, which is the parent's: AddressSanitizer would mark its surroundings
          // there, and exec leaves the marks.
          static const char* const arguments[] = {"sleep", "1000", nullptr};
          execv("/bin/sleep", const_cast<char* const*>(arguments));
          leave_shared(1);
        },
        nullptr);
    return child ? child->pid : -1;
  }

  std::optional<RunDirectory> run_;
};

TEST_F(RunCgroup, AWorkerIsBornIntoItsOwn) {
  const std::string worker = make_worker_cgroup(run_->path, LocalRank(3));
  EXPECT_TRUE(worker.ends_with("/worker-3")) << worker;
  const pid_t pid = sleeper_in(worker);
  ASSERT_GT(pid, 0);
  std::ifstream list("/proc/" + std::to_string(pid) + "/cgroup");
  const std::string text{std::istreambuf_iterator<char>(list), {}};
  EXPECT_NE(text.find(fs::path(run_->path).filename().string() + "/worker-3\n"), std::string::npos)
      << text;
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  EXPECT_EQ(make_worker_cgroup(run_->path, LocalRank(3)), worker) << "anew, when it is empty";
}

TEST_F(RunCgroup, RemovingItEndsWhatIsInIt) {
  const pid_t pid = sleeper_in(make_worker_cgroup(run_->path, LocalRank(0)));
  ASSERT_GT(pid, 0);
  EXPECT_TRUE(remove_cgroup(run_->path));
  EXPECT_FALSE(fs::exists(run_->path));
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  EXPECT_TRUE(remove_cgroup(run_->path)) << "again";
}

TEST(RunCgroupFiles, OomKillsAreReadWhereTheyAreCounted) {
  const testing_support::TemporaryDirectory directory;
  EXPECT_EQ(oom_kills_in(directory.path()), 0) << "nobody counts";
  std::ofstream(directory / "memory.events")
      << "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n";
  EXPECT_EQ(oom_kills_in(directory.path()), 1);
  EXPECT_EQ(oom_kills_in(""), 0);
  EXPECT_GE(oom_kills_of_machine(), 0);
}

TEST(RunCgroupFiles, WithoutARunThereIsNothingToDo) {
  EXPECT_EQ(make_worker_cgroup("", LocalRank(0)), "");
  EXPECT_TRUE(remove_cgroup(""));
}

TEST(SharedClone, WhatTheChildWroteIsReadByItsParent) {
  if (kCloneIsFork) GTEST_SKIP() << kNoSharedClone;
  int written = 0;
  Result<ClonedChild> child = start_sharing_memory(
      -1,
      [](void* argument) {
        *static_cast<int*>(argument) = 42;
        leave_shared(3);
      },
      &written);
  ASSERT_TRUE(child);
  EXPECT_EQ(written, 42);
  EXPECT_TRUE(child->pidfd.valid());
  int status = 0;
  ASSERT_EQ(waitpid(child->pid, &status, 0), child->pid);
  EXPECT_EQ(WEXITSTATUS(status), 3);
}

}  // namespace
}  // namespace ddprun
