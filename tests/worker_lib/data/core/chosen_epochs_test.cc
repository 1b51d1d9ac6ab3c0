#include "worker_lib/data/core/chosen_epochs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

ChosenEpoch train(std::int64_t epoch) { return {.epoch = epoch, .sampler = "train"}; }
ChosenEpoch eval(std::int64_t epoch) { return {.epoch = epoch, .sampler = "eval"}; }

TEST(RanksByEpoch, NameTheRanksThatContradictEachOther) {
  EXPECT_THAT(ranks_by_epoch({{train(1)}, {train(0)}, {train(1)}}),
              ElementsAre(Pair(0, ElementsAre(1)), Pair(1, ElementsAre(0, 2))));
}

TEST(RanksByEpoch, AreEmptyIfTheRanksAgree) {
  EXPECT_THAT(ranks_by_epoch({}), IsEmpty());
  EXPECT_THAT(ranks_by_epoch({{train(1)}, {train(1)}}), IsEmpty());
  EXPECT_THAT(ranks_by_epoch({{train(1)}, {}, {train(1)}}), IsEmpty());
}

TEST(RanksByEpoch, AreEmptyIfTheNewestChoicesAreOfDifferentSamplersThatAgree) {
  EXPECT_THAT(ranks_by_epoch({{eval(0), train(5)}, {train(5)}}), IsEmpty());
  EXPECT_THAT(ranks_by_epoch({{train(5)}, {eval(0), train(5)}}), IsEmpty());
  EXPECT_THAT(ranks_by_epoch({{eval(0), train(5)}, {train(5), eval(0)}}), IsEmpty());
}

TEST(RanksByEpoch, AreThoseOfASamplerThatBothRanksHave) {
  EXPECT_THAT(ranks_by_epoch({{eval(0), train(5)}, {train(4)}}),
              ElementsAre(Pair(4, ElementsAre(1)), Pair(5, ElementsAre(0))));
  EXPECT_THAT(ranks_by_epoch({{train(4)}, {eval(0), train(5)}}),
              ElementsAre(Pair(4, ElementsAre(0)), Pair(5, ElementsAre(1))));
  EXPECT_THAT(ranks_by_epoch({{train(1), eval(0)}, {train(0), eval(0)}}),
              ElementsAre(Pair(0, ElementsAre(1)), Pair(1, ElementsAre(0))));
}

// A dataset that has another size on one rank makes the epochs there shorter.
TEST(RanksByEpoch, ContradictEachOtherAlsoWithSamplersThatOneRankOnlyHas) {
  EXPECT_THAT(ranks_by_epoch({{train(1)}, {eval(0)}}),
              ElementsAre(Pair(0, ElementsAre(1)), Pair(1, ElementsAre(0))));
}

// Each rank may have data of its own, and one of them a sampler for evaluation, too.
TEST(RanksByEpoch, AreEmptyIfRanksWithoutACommonSamplerHaveChosenTheSameEpoch) {
  const ChosenEpoch of_8{.epoch = 5, .sampler = "train of 8"};
  const ChosenEpoch of_9{.epoch = 5, .sampler = "train of 9"};
  EXPECT_THAT(ranks_by_epoch({{eval(0), of_8}, {of_9}}), IsEmpty());
  EXPECT_THAT(ranks_by_epoch({{of_9}, {eval(0), of_8}}), IsEmpty());
}

}  // namespace
}  // namespace ddprun
