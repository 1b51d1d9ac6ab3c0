#include "launcher/output/core/step_rate.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::seconds;

TEST(StepRate, IsTheMeanOfTheLastTenSeconds) {
  StepRate rate;
  TimePoint now{seconds(5)};
  rate.see(std::nullopt, now);
  EXPECT_FALSE(rate.step());
  rate.see(100, now);
  EXPECT_EQ(rate.step(), 100);
  EXPECT_FALSE(rate.rate()) << "one step says nothing of time";
  std::int64_t step = 100;
  for (int i = 0; i < 20; ++i) rate.see(step += 4, now += seconds(1));
  EXPECT_DOUBLE_EQ(*rate.rate(), 4.0);
  for (int i = 0; i < 5; ++i) rate.see(step, now += seconds(1));
  EXPECT_DOUBLE_EQ(*rate.rate(), 2.0) << "half of the time nothing was done";
  for (int i = 0; i < 10; ++i) rate.see(step, now += seconds(1));
  EXPECT_DOUBLE_EQ(*rate.rate(), 0.0);
}

TEST(StepRate, BeginsAnewWhenStepsDo) {
  StepRate rate;
  rate.see(100, TimePoint(seconds(1)));
  rate.see(110, TimePoint(seconds(2)));
  rate.see(50, TimePoint(seconds(3)));
  EXPECT_FALSE(rate.rate()) << "it was restored from a checkpoint";
  EXPECT_EQ(rate.step(), 50);
  rate.see(std::nullopt, TimePoint(seconds(4)));
  EXPECT_FALSE(rate.step());
}

}  // namespace
}  // namespace ddprun
