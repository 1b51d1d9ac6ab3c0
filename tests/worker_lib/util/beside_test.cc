#include "worker_lib/util/beside.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(Beside, DoesOneThingAfterTheOtherOnOneThreadOfItsOwn) {
  Beside beside("test");
  beside.join();  // nothing is being done
  std::thread::id first, second;
  beside.begin([&] { first = std::this_thread::get_id(); });
  beside.join();
  beside.begin([&] { second = std::this_thread::get_id(); });
  beside.join();
  EXPECT_NE(first, std::this_thread::get_id());
  EXPECT_EQ(first, second);
}

TEST(Beside, WaitsForWhatItDoesWhenItEnds) {
  int done = 0;
  { Beside("test").begin([&] { ++done; }); }
  EXPECT_EQ(done, 1);
}

}  // namespace
}  // namespace ddprun
