#include "worker_lib/checkpoint/core/training_position.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TrainingPosition at(std::int64_t step, std::int64_t epoch, SamplerPosition sampler) {
  return {.step = step, .epoch = epoch, .sampler = sampler};
}

TEST(EpochContradiction, IsNoneWhereTheProgramCountsTheSamplersEpochOrTheNextOne) {
  EXPECT_FALSE(epoch_contradiction({.epoch = 5}));
  EXPECT_FALSE(epoch_contradiction(at(9, 2, {.epoch = 2})));
  EXPECT_FALSE(epoch_contradiction(at(9, 3, {.epoch = 2})));
}

TEST(EpochContradiction, NamesBothEpochsAndWhatAResumedRunWouldDo) {
  EXPECT_THAT(*epoch_contradiction(at(9, 0, {.epoch = 2})),
              AllOf(HasSubstr("epoch is 0"), HasSubstr("in epoch 2"), HasSubstr("epochs twice")));
  EXPECT_THAT(*epoch_contradiction(at(9, 4, {.epoch = 0})),
              AllOf(HasSubstr("epoch is 4"), HasSubstr("in epoch 0"), HasSubstr("set_epoch")));
}

TEST(PositionDifference, NamesTheFirstThingInWhichTwoRanksDiffer) {
  const TrainingPosition own = at(7, 2, {.epoch = 2, .position = 40});
  const auto words = [&](const TrainingPosition& other) {
    const auto difference = difference_between(own, other);
    return difference ? difference->own + " / " + difference->other : "";
  };
  EXPECT_EQ(words(own), "");
  EXPECT_EQ(words(at(8, 3, {})), "is at step 7 / is at step 8");
  EXPECT_EQ(words(at(7, 3, {})), "is in epoch 2 / is in epoch 3");
  EXPECT_EQ(words({.step = 7, .epoch = 2}), "has a sampler / has no sampler");
  EXPECT_EQ(words(at(7, 2, {.epoch = 1, .position = 40})),
            "has a sampler in epoch 2 / has a sampler in epoch 1");
  EXPECT_EQ(words(at(7, 2, {.epoch = 2, .position = 20})),
            "has a sampler at position 40 / has a sampler at position 20");
}

TEST(PositionWatch, SaysNothingOfATrainingThatCanBeResumed) {
  PositionWatch watch;
  watch.restored(at(0, 0, {}));
  EXPECT_THAT(watch.saving(at(10, 0, {.position = 40}), true), IsEmpty());
  EXPECT_THAT(watch.saving(at(20, 1, {.epoch = 1}), true), IsEmpty());
  PositionWatch without;
  without.restored({});
  EXPECT_THAT(without.saving({.step = 10}, false), IsEmpty());
  PositionWatch of_its_own;
  EXPECT_THAT(of_its_own.saving(at(10, 0, {.epoch = 7}), false), IsEmpty());
}

TEST(PositionWatch, SaysOnceThatThereIsNoSampler) {
  PositionWatch watch;
  EXPECT_THAT(watch.saving({.step = 5}, true), IsEmpty()) << "the epoch may change with each save";
  EXPECT_THAT(watch.saving({.step = 10}, true), ElementsAre(HasSubstr("sampler is null")));
  EXPECT_THAT(watch.saving({.step = 20}, true), IsEmpty());
}

TEST(PositionWatch, SavesBetweenEpochsNeedNoSampler) {
  PositionWatch watch;
  EXPECT_THAT(watch.saving({.step = 5, .epoch = 0}, true), IsEmpty());
  EXPECT_THAT(watch.saving({.step = 10, .epoch = 1}, true), IsEmpty());
  EXPECT_THAT(watch.saving({.step = 20, .epoch = 2}, true), IsEmpty());
  EXPECT_THAT(watch.saving({.step = 25, .epoch = 2}, true), ElementsAre(HasSubstr("is null")));
}

TEST(PositionWatch, SaysOnceThatTheSamplerDoesNotMove) {
  const auto unused = ElementsAre(HasSubstr("has not moved since step 30 (epoch 1, position 8)"));
  PositionWatch watch;
  const SamplerPosition still{.epoch = 1, .position = 8};
  watch.restored(at(30, 1, still));
  EXPECT_THAT(watch.saving(at(30, 1, still), true), IsEmpty());
  EXPECT_THAT(watch.saving(at(40, 1, still), true), unused);
  EXPECT_THAT(watch.saving(at(50, 1, still), true), IsEmpty());
  PositionWatch without_restore;
  EXPECT_THAT(without_restore.saving(at(40, 0, {}), true),
              ElementsAre(HasSubstr("has not moved since step 0")));
}

TEST(PositionWatch, ASamplerThatHasMovedMayStandStillAgain) {
  PositionWatch watch;
  watch.restored(at(0, 0, {}));
  EXPECT_THAT(watch.saving(at(10, 0, {.position = 40}), true), IsEmpty());
  EXPECT_THAT(watch.saving(at(11, 0, {}), true), IsEmpty());
}

TEST(PositionWatch, SaysAContradictionOnce) {
  PositionWatch watch;
  watch.restored(at(0, 0, {}));
  EXPECT_THAT(watch.saving(at(10, 0, {.epoch = 1}), true), ElementsAre(HasSubstr("epochs twice")));
  EXPECT_THAT(watch.saving(at(20, 0, {.epoch = 2}), true), IsEmpty());
}

}  // namespace
}  // namespace ddprun
