#include "examples/epoch_report.h"

#include <gtest/gtest.h>

namespace examples {
namespace {

const EpochProgress kHalf{.epoch = 3,
                          .done = 20,
                          .steps = 40,
                          .loss = 0.25,
                          .samples_per_second = 1234,
                          .seconds_left = 7};

TEST(ProgressLine, HasABarAndNumbersWhereThereIsRoom) {
  EXPECT_EQ(progress_line(kHalf, 80),
            "epoch 3 [============            ] 20/40  loss 0.2500  1234 samples/s  7 s left");
}

TEST(ProgressLine, LeavesOutWhatATerminalHasNoRoomFor) {
  EXPECT_EQ(progress_line(kHalf, 62),
            "epoch 3 [===    ] 20/40  loss 0.2500  1234 samples/s  7 s left");
  EXPECT_EQ(progress_line(kHalf, 55), "epoch 3 20/40  loss 0.2500  1234 samples/s  7 s left");
  EXPECT_EQ(progress_line(kHalf, 50), "epoch 3 [=====      ] 20/40  loss 0.2500  7 s left");
  EXPECT_EQ(progress_line(kHalf, 30), "epoch 3 20/40  7 s left");
  EXPECT_EQ(progress_line(kHalf, 15), "epoch 3 20/40");
  EXPECT_EQ(progress_line(kHalf, 10), "epoch 3 20");
}

TEST(ProgressLine, MoreStepsThanWereAnnouncedFillTheBarAndNoMore) {
  EpochProgress more = kHalf;
  more.done = 41;
  EXPECT_EQ(progress_line(more, 80).substr(0, 40), "epoch 3 [========================] 41/40");
  more.steps = 0;
  EXPECT_EQ(progress_line(more, 80).substr(0, 40), "epoch 3 [========================] 41/0 ");
}

TEST(ProgressLine, TellsTheTimeInAUnitThatPeopleUse) {
  EpochProgress slow = kHalf;
  for (const auto& [seconds, words] : {std::pair{0.4, "  0 s left"},
                                       {99.4, "  99 s left"},
                                       {600.0, "  10 min left"},
                                       {36000.0, "  10 h left"}}) {
    slow.seconds_left = seconds;
    EXPECT_TRUE(progress_line(slow, 100).ends_with(words)) << progress_line(slow, 100);
  }
}

}  // namespace
}  // namespace examples
