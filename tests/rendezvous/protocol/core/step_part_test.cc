#include "rendezvous/protocol/core/step_part.h"

#include <gtest/gtest.h>

#include <limits>

namespace ddprun {
namespace {

TEST(StepPart, WhatHasNoNameIsOther) {
  EXPECT_EQ(parts_of({.data = 10.0, .forward = 20, .backward = 30, .communication = 5}),
            (PartShares{10, 20, 30, 5, 0, 35}));
  EXPECT_EQ(parts_of({}), (PartShares{0, 0, 0, 0, 0, 100}));
}

TEST(StepPart, NumbersOutOfBoundsCountAsNothing) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(parts_of({.data = kNan, .forward = 100.5, .backward = -1}), PartShares{});
}

TEST(StepPart, TheTextHasTheLargestFirst) {
  EXPECT_EQ(parts_text({1, 20, 40, 38.6, 0.4, 0}),
            "backward 40 %, communication 39 %, forward 20 %, data 1 %");
  EXPECT_EQ(parts_text({}), "");
}

}  // namespace
}  // namespace ddprun
