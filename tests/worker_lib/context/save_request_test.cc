#include "worker_lib/context/save_request.h"

#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>

#include "base/pipe.h"
#include "base/write_all.h"

namespace ddprun {
namespace {

// Runs each body in its own process: a process has one request and one signal.
template <class Body>
void in_a_child(Body body) {
  EXPECT_EXIT(
      {
        body();
        _exit(testing::Test::HasFailure() ? 1 : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST(SaveRequest, ComesWithTheSignal) {
  in_a_child([] {
    listen_for_save_requests(SIGUSR1);
    EXPECT_FALSE(save_was_requested());
    raise(SIGUSR1);
    EXPECT_TRUE(save_was_requested());
    raise(SIGUSR1);  // Slurm sends it twice
    EXPECT_TRUE(save_was_requested());
  });
}

TEST(SaveRequest, ThatCameBeforeAnybodyListenedCounts) {
  in_a_child([] {
    sigset_t blocked;  // blocked, as the launcher starts its workers
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR2);
    pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    raise(SIGUSR2);
    listen_for_save_requests(SIGUSR2);
    EXPECT_TRUE(save_was_requested());
  });
}

TEST(SaveRequest, WithoutASignalNothingIsTaken) {
  EXPECT_EXIT(
      {
        listen_for_save_requests(0);
        raise(SIGUSR1);
      },
      testing::KilledBySignal(SIGUSR1), "");
}

// Gets SIGTERM from another process of this name, which lives until the signal was handled.
void get_sigterm_from(const char* name) {
  Result<Pipe> sent = make_pipe();
  ASSERT_TRUE(sent);
  const pid_t sender = fork();
  if (sender == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_NAME, name);
    kill(getppid(), SIGTERM);
    write_all(sent->write.get(), "x");
    while (true) pause();
  }
  char byte = 0;
  ssize_t count = 0;
  do {
    count = read(sent->read.get(), &byte, 1);
  } while (count < 0 && errno == EINTR);
  EXPECT_EQ(count, 1);
  kill(sender, SIGKILL);
  waitpid(sender, nullptr, 0);
}

TEST(SaveRequest, ComesWithSlurmsSigterm) {
  in_a_child([] {
    setenv("SLURM_JOB_ID", "812", 1);
    listen_for_save_requests(SIGUSR1);
    EXPECT_FALSE(save_was_requested());
    get_sigterm_from("slurmstepd");
    EXPECT_TRUE(save_was_requested());
  });
}

TEST(SaveRequest, DoesNotComeWithAnotherSigterm) {
  const auto get_it = [](const char* job, const char* sender) {
    unsetenv("SLURM_JOB_ID");
    if (job) setenv("SLURM_JOB_ID", job, 1);
    listen_for_save_requests(SIGUSR1);
    get_sigterm_from(sender);
    _exit(0);
  };
  EXPECT_EXIT(get_it("812", "ddprun"), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(get_it("812", "slurmstepd2"), testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(get_it(nullptr, "slurmstepd"), testing::KilledBySignal(SIGTERM), "");
}

TEST(SaveRequest, LeavesAHandlerOfTheProgram) {
  in_a_child([] {
    static volatile std::sig_atomic_t count = 0;
    setenv("SLURM_JOB_ID", "812", 1);
    std::signal(SIGTERM, [](int) { count = count + 1; });
    listen_for_save_requests(SIGUSR1);
    get_sigterm_from("slurmstepd");
    EXPECT_EQ(count, 1);
    EXPECT_FALSE(save_was_requested());
  });
}

}  // namespace
}  // namespace ddprun
