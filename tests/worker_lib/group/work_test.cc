#include "ddprun/work.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>
#include <thread>

#include "ddprun/error.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "worker_lib/group/serial_executor.h"
#include "worker_lib/group/work_state.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::dist_error_of;

TEST(Work, ADefaultOneIsComplete) {
  const Work work;
  EXPECT_TRUE(work.is_completed());
  EXPECT_EQ(work.exception(), nullptr);
  work.wait();
  work.wait(milliseconds(1));
}

TEST(Work, CompletesWhenItsStateDoes) {
  const auto state = std::make_shared<detail::HostWork>();
  const Work work(state);
  EXPECT_FALSE(work.is_completed());
  auto waiter = std::async(std::launch::async, [work] { work.wait(seconds(30)); });
  state->complete({});
  waiter.get();
  EXPECT_TRUE(work.is_completed());
}

TEST(Work, AFailureIsThrownByEveryWaitAndKeptAsAnException) {
  const auto state = std::make_shared<detail::HostWork>();
  const Work work(state);
  state->complete(Error{.kind = ErrorKind::kPeerLost, .cause = "gone", .peer_rank = 1});
  EXPECT_TRUE(work.is_completed());
  EXPECT_NE(work.exception(), nullptr);
  EXPECT_DIST_ERROR(work.wait(), DistError::Kind::kPeerLost, HasSubstr("gone"));
  EXPECT_DIST_ERROR(work.wait(), DistError::Kind::kPeerLost, HasSubstr("gone"));
}

TEST(PendingWork, IsOverWhenItsMakerSaysSo) {
  const PendingWork good, bad;
  const Work first = good.work(), second = bad.work();
  EXPECT_FALSE(first.is_completed());
  EXPECT_DIST_ERROR(first.wait(milliseconds(1)), DistError::Kind::kTimeout, testing::_);
  std::thread maker([=] {
    good.complete(/*source_rank=*/2);
    bad.fail(DistError(DistError::Kind::kPeerLost, "broadcast: rank 1 is gone", 1));
  });
  first.wait(seconds(30));
  EXPECT_EQ(first.source_rank(), 2);
  EXPECT_DIST_ERROR(second.wait(seconds(30)), DistError::Kind::kPeerLost,
                    HasSubstr("broadcast: rank 1 is gone"));
  EXPECT_EQ(dist_error_of([&] { second.wait(); }).peer_rank(), 1);
  maker.join();
}

TEST(Work, AFutureCallsBackWhenItIsOverAndWhenItWas) {
  const auto state = std::make_shared<detail::HostWork>();
  state->outputs = {torch::ones({3})};
  int called = 0;
  const auto future = Work(state).future();
  future->addCallback([&](c10::ivalue::Future& over) {
    called += static_cast<int>(over.value().toTensorVector()[0].sum().item<float>());
  });
  EXPECT_EQ(called, 0);
  state->complete({});
  EXPECT_EQ(called, 3);
  const auto next = Work(state).future()->then([](c10::ivalue::Future&) { return c10::IValue(7); },
                                               c10::IntType::get());
  EXPECT_EQ(next->value().toInt(), 7);
}

TEST(Work, AFutureHasTheFailure) {
  const auto state = std::make_shared<detail::HostWork>();
  const auto future = Work(state).future();
  state->complete(Error{.kind = ErrorKind::kPeerLost, .cause = "gone", .peer_rank = 1});
  ASSERT_TRUE(future->hasError());
  EXPECT_DIST_ERROR(std::rethrow_exception(future->exception_ptr()), DistError::Kind::kPeerLost,
                    HasSubstr("gone"));
  EXPECT_TRUE(Work(state).future()->hasError());
}

TEST(Work, AFutureOfACompleteWorkIsEmpty) {
  const auto future = Work().future();
  ASSERT_TRUE(future->completed());
  EXPECT_TRUE(future->value().toTensorVector().empty());
}

// The state keeps the function that it will call, and the function keeps the state. The end of
// the call breaks this cycle.
TEST(Work, AFutureLetsGoOfTheWorkWhenItIsOver) {
  auto state = std::make_shared<detail::HostWork>();
  const std::weak_ptr<detail::HostWork> seen = state;
  const auto future = Work(state).future();
  state->complete({});
  state.reset();
  EXPECT_TRUE(seen.expired());
}

TEST(Work, AWaitThatIsTooShortThrowsTimeoutAndEndsNothing) {
  const auto state = std::make_shared<detail::HostWork>();
  const Work work(state);
  const DistError late = dist_error_of([&] { work.wait(milliseconds(1)); });
  EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
  EXPECT_EQ(late.allowed(), milliseconds(1));
  EXPECT_FALSE(work.is_completed());
  state->complete({});
  work.wait();
}

TEST(Work, TheLongestTimeoutThereIsDoesNotLieInThePast) {
  const auto state = std::make_shared<detail::HostWork>();
  const Work work(state);
  auto waiter =
      std::async(std::launch::async, [work] { work.wait(std::chrono::nanoseconds::max()); });
  state->complete({});
  EXPECT_NO_THROW(waiter.get());
}

// --- the executor

TEST(SerialExecutor, RunsCallsInTheOrderInWhichTheyWereSubmitted) {
  std::vector<int> order;
  {
    SerialExecutor executor("test");
    for (int i = 0; i < 100; ++i) {
      executor.submit([&order, i]() -> Result<void> {
        order.push_back(i);
        return {};
      });
    }
  }
  ASSERT_EQ(order.size(), 100U);
  EXPECT_TRUE(std::ranges::is_sorted(order));
}

TEST(SerialExecutor, IsIdleAgainWhenTheLastCallHasBeenWaitedFor) {
  SerialExecutor executor("test");
  EXPECT_TRUE(executor.is_idle());
  std::promise<void> go;
  const auto work = executor.submit([gate = go.get_future().share()]() -> Result<void> {
    gate.wait();
    return {};
  });
  EXPECT_FALSE(executor.is_idle());
  go.set_value();
  work->wait(seconds(30));
  EXPECT_TRUE(executor.is_idle());
}

TEST(SerialExecutor, LetsGoOfWhatACallHoldsBeforeItCompletes) {
  SerialExecutor executor("test");
  auto held = std::make_shared<int>(1);
  const std::weak_ptr<int> seen = held;
  const auto work = executor.submit([held = std::move(held)]() -> Result<void> { return {}; });
  work->wait(seconds(30));
  EXPECT_TRUE(seen.expired());
}

TEST(SerialExecutor, AFullQueueMakesTheCallerWaitForRoom) {
  SerialExecutor executor("test");
  std::promise<void> go;
  const auto gate = go.get_future().share();
  const auto blocked = [gate]() -> Result<void> {
    gate.wait();
    return {};
  };
  std::atomic<std::size_t> submitted = 0;
  auto caller = std::async(std::launch::async, [&] {
    for (std::size_t i = 0; i < SerialExecutor::kMaxWaiting + 50; ++i) {
      executor.submit(blocked);
      ++submitted;
    }
  });
  // One call runs and kMaxWaiting calls wait, so the caller must wait.
  EXPECT_TRUE(
      testing_support::eventually([&] { return submitted >= SerialExecutor::kMaxWaiting; }));
  EXPECT_EQ(caller.wait_for(milliseconds(20)), std::future_status::timeout);
  EXPECT_LE(submitted, SerialExecutor::kMaxWaiting + 1);
  go.set_value();
  caller.get();
}

TEST(SerialExecutor, ItsThreadTakesNoSignals) {
  SerialExecutor executor("test");
  bool is_blocked = false;
  executor
      .submit([&is_blocked]() -> Result<void> {
        sigset_t mask;
        pthread_sigmask(SIG_SETMASK, nullptr, &mask);
        is_blocked = sigismember(&mask, SIGTERM) == 1 && sigismember(&mask, SIGINT) == 1;
        return {};
      })
      ->wait(seconds(30));
  EXPECT_TRUE(is_blocked);
}

}  // namespace
}  // namespace ddprun
