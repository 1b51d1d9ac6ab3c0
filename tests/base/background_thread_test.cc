#include "base/background_thread.h"

#include <gtest/gtest.h>

#include <csignal>
#include <future>

namespace ddprun {
namespace {

constexpr Duration kLong = std::chrono::seconds(20);

TEST(BackgroundThread, GivesItsAnswer) {
  const auto answer = result_within<int>(kLong, "test", [] { return 7; });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->value(), 7);
}

TEST(BackgroundThread, AnErrorIsAnAnswer) {
  const auto answer =
      result_within<int>(kLong, "test", [] { return invalid_argument("no such thing"); });
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->error().message(), "no such thing");
}

TEST(BackgroundThread, OneThatTakesTooLongIsLeftToItself) {
  std::promise<void> gate;
  std::promise<void> left;
  const auto answer = result_within<int>(std::chrono::milliseconds(20), "test",
                                         [&left, open = gate.get_future().share()] {
                                           open.wait();
                                           left.set_value();
                                           return 7;
                                         });
  EXPECT_FALSE(answer);
  gate.set_value();
  EXPECT_EQ(left.get_future().wait_for(kLong), std::future_status::ready);
}

TEST(BackgroundThread, TakesNoSignals) {
  const auto blocked = result_within<bool>(kLong, "test", [] {
    sigset_t mask;
    pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    return sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
  });
  ASSERT_TRUE(blocked);
  EXPECT_TRUE(blocked->value());
}

}  // namespace
}  // namespace ddprun
