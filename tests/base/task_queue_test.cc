#include "base/task_queue.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <numeric>
#include <thread>
#include <vector>

namespace ddprun {
namespace {

TEST(TaskQueue, RunsTasksInTheOrderInWhichTheyWerePosted) {
  std::vector<int> done;
  TaskQueue queue("test", 2);
  ASSERT_TRUE(queue.start());
  for (int i = 0; i < 100; ++i) queue.post([&done, i] { done.push_back(i); });
  queue.await_idle(kLongestTimeout);
  std::vector<int> expected(100);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(done, expected);
}

TEST(TaskQueue, APostWaitsForRoom) {
  std::promise<void> begun, may_end;
  int done = 0;
  TaskQueue queue("test", 1);
  ASSERT_TRUE(queue.start());
  queue.post([&] {
    begun.set_value();
    may_end.get_future().wait();
  });
  begun.get_future().wait();
  queue.post([&] { ++done; });
  std::future<void> posted =
      std::async(std::launch::async, [&] { queue.post([&done] { ++done; }); });
  EXPECT_EQ(posted.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  may_end.set_value();
  posted.wait();
  queue.await_idle(kLongestTimeout);
  EXPECT_EQ(done, 2);
}

TEST(TaskQueue, AwaitIdleEndsWithItsPatience) {
  std::promise<void> may_end;
  bool is_done = false;
  TaskQueue queue("test", 1);
  ASSERT_TRUE(queue.start());
  queue.post([&] {
    may_end.get_future().wait();
    is_done = true;
  });
  queue.await_idle(std::chrono::milliseconds(1));
  EXPECT_FALSE(is_done);
  may_end.set_value();
  queue.await_idle(kLongestTimeout);
  EXPECT_TRUE(is_done);
}

TEST(TaskQueue, RunsAllWaitingTasksBeforeItEnds) {
  std::promise<void> may_end;
  int done = 0;
  {
    TaskQueue queue("test", 5);
    ASSERT_TRUE(queue.start());
    queue.post([&] { may_end.get_future().wait(); });
    for (int i = 0; i < 5; ++i) queue.post([&] { ++done; });
    may_end.set_value();
  }
  EXPECT_EQ(done, 5);
}

TEST(BackgroundTask, DoesOneThingAfterTheOtherOnOneThreadOfItsOwn) {
  BackgroundTask task("test");
  task.join();  // nothing runs
  std::thread::id first, second;
  task.begin([&] { first = std::this_thread::get_id(); });
  task.join();
  task.begin([&] { second = std::this_thread::get_id(); });
  task.join();
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(first, second);
}

TEST(BackgroundTask, WaitsForWhatItDoesWhenItEnds) {
  int done = 0;
  {
    BackgroundTask("test").begin([&] { ++done; });
  }
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace ddprun
