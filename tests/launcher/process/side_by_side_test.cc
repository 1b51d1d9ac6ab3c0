#include "launcher/process/side_by_side.h"

#include <gtest/gtest.h>

#include <chrono>
#include <future>

namespace ddprun {
namespace {

TEST(SideBySide, RunsAllAtTheSameTimeAndWaitsForThem) {
  std::promise<void> first;
  std::promise<void> second;
  std::future<void> first_has_begun = first.get_future();
  std::future<void> second_has_begun = second.get_future();
  constexpr auto kPatience = std::chrono::seconds(10);
  std::future_status seen_by_first{};
  std::future_status seen_by_second{};
  side_by_side({[&] {
                  first.set_value();
                  seen_by_first = second_has_begun.wait_for(kPatience);
                },
                [&] {
                  second.set_value();
                  seen_by_second = first_has_begun.wait_for(kPatience);
                }});
  EXPECT_EQ(seen_by_first, std::future_status::ready);
  EXPECT_EQ(seen_by_second, std::future_status::ready);
}

TEST(SideBySide, OfNothingIsOver) { side_by_side({}); }

}  // namespace
}  // namespace ddprun
