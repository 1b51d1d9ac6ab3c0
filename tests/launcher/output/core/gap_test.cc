#include "launcher/output/core/gap.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const TimePoint kStart{seconds(1000)};

TEST(OutputGap, IsOpenedOnceAndCountsWhatIsLeftOut) {
  OutputGap gap("a file");
  EXPECT_FALSE(gap.is_open());
  gap.open("No space left on device", kStart);
  gap.open("Input/output error", kStart);
  EXPECT_TRUE(gap.is_open());
  EXPECT_EQ(gap.take_news(),
            (std::vector<std::string>{"a file: No space left on device; output to it is dropped "
                                      "until this is over, workers continue"}))
      << "it is open already";
  gap.drop("a line\n");
  gap.drop_unseen(5);
  EXPECT_EQ(gap.missing(), 12u);
  EXPECT_EQ(gap.text(), "12 bytes are missing");
  EXPECT_EQ(gap.why(), "No space left on device");
  EXPECT_EQ(gap.loss(), "a file: 12 bytes are missing: No space left on device");
  gap.close();
  EXPECT_EQ(gap.take_news(),
            (std::vector<std::string>{"a file is written again; 12 bytes are missing"}));
  EXPECT_FALSE(gap.is_open());
  EXPECT_EQ(gap.missing(), 0u);
}

TEST(OutputGap, IsTriedAgainAfterLongerAndLongerTimes) {
  OutputGap gap;
  TimePoint now = kStart;
  for (const int pause : {1, 2, 4, 8, 16, 32, 60, 60}) {
    gap.open("full", now);
    EXPECT_EQ(gap.writable("x\n", now + seconds(pause) - milliseconds(1)), "") << pause;
    now += seconds(pause);
    EXPECT_EQ(gap.writable("x\n", now), "x\n") << pause;
  }
  EXPECT_EQ(gap.missing(), 8 * 2u) << "what is to be written is not missing";
}

TEST(OutputGap, IsTriedAgainWithoutBytes) {
  OutputGap gap;
  EXPECT_EQ(gap.retry_due(), std::nullopt);
  gap.open("full", kStart);
  EXPECT_EQ(gap.retry_due(), kStart + OutputGap::kRetry);
  gap.drop("a line\n");
  EXPECT_EQ(gap.retry_due(), kStart + OutputGap::kRetry);
  gap.drop("the beginning");
  EXPECT_EQ(gap.retry_due(), kStart + OutputGap::kRetry);
  gap.drop(" and the end\n");
  gap.open("full", kStart + seconds(1));
  EXPECT_EQ(gap.retry_due(), kStart + seconds(3));
  gap.close();
  EXPECT_EQ(gap.retry_due(), std::nullopt);
}

TEST(OutputGap, GoesOnWithAWholeLine) {
  OutputGap gap;
  gap.open("full", kStart);
  gap.drop("the beginning ");
  const TimePoint later = kStart + OutputGap::kRetry;
  EXPECT_EQ(gap.writable("the middle ", later), "");
  EXPECT_EQ(gap.writable("the end\nnext\n", later), "next\n");
  EXPECT_EQ(gap.missing(), std::string("the beginning the middle the end\n").size());
  EXPECT_EQ(gap.writable("another\n", later), "another\n");
}

TEST(OutputGap, TheEndOfALineIsDroppedAfterARetryWithoutBytes) {
  OutputGap gap("a file");
  gap.open("the disk did not accept them in time", kStart);
  gap.drop_unseen(3);
  EXPECT_EQ(gap.retry_due(), kStart + OutputGap::kRetry);
  gap.take_news();
  gap.close();
  EXPECT_EQ(gap.take_news().size(), 1u);
  EXPECT_TRUE(gap.is_mid_line());
  EXPECT_EQ(gap.writable("of it", kStart), "");
  EXPECT_EQ(gap.missing(), 5u);
  EXPECT_EQ(gap.writable("\nnext\n", kStart), "next\n");
  EXPECT_FALSE(gap.is_mid_line());
  gap.close();
  EXPECT_TRUE(gap.take_news().empty()) << "it was said that it is written again";
}

TEST(OutputGap, WhatNobodyHasLookedAtIsTakenToEndNoLine) {
  OutputGap gap;
  gap.open("the disk did not accept them in time", kStart);
  gap.drop_unseen(3);
  EXPECT_EQ(gap.writable("of it\nnext\n", kStart), "next\n") << "at once";
}

}  // namespace
}  // namespace ddprun
