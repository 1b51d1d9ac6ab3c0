#include "base/task_queue.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

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
