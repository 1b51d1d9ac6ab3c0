#include "worker_lib/context/save_request.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>

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

}  // namespace
}  // namespace ddprun
