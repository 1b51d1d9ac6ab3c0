#include "worker_lib/spawn/core/watch.h"

#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using Act = SpawnWatch::Act;
using Haste = SpawnWatch::Haste;
using std::chrono::seconds;

constexpr Duration kGrace = seconds(30);
constexpr RankEnd kWell{.well = true};
constexpr RankEnd kThrew{};
constexpr RankEnd kCrashed{.signal = SIGSEGV};
constexpr RankEnd kTerminated{.signal = SIGTERM};
constexpr RankEnd kKilled{.signal = SIGKILL};

constexpr RankEnd lost(int peer) { return {.blamed_peer = peer}; }

TimePoint at(int second) { return TimePoint(seconds(second)); }

TEST(SpawnWatch, IsOverWithoutAStoryWhenAllHaveEndedWell) {
  SpawnWatch watch(2, kGrace);
  EXPECT_EQ(watch.on_end(1, kWell, at(1)), Act::kNothing);
  EXPECT_FALSE(watch.is_over());
  EXPECT_EQ(watch.next_time(), std::nullopt);  // the other rank may take any time
  EXPECT_EQ(watch.on_end(0, kWell, at(1000)), Act::kNothing);
  EXPECT_TRUE(watch.is_over());
  EXPECT_EQ(watch.story(), std::nullopt);
}

TEST(SpawnWatch, TellsTheOthersWhenOneFailsAndKillsThemWhenTheGraceIsOver) {
  for (const RankEnd& end : {kThrew, kCrashed, kTerminated, kKilled}) {
    SpawnWatch watch(3, kGrace);
    EXPECT_EQ(watch.on_end(1, end, at(5)), Act::kTerminate);
    EXPECT_EQ(watch.next_time(), at(35));
    EXPECT_EQ(watch.on_time(at(34)), Act::kNothing);
    EXPECT_EQ(watch.on_end(0, kTerminated, at(34)), Act::kNothing);
    EXPECT_EQ(watch.on_time(at(35)), Act::kKill);
    EXPECT_FALSE(watch.is_over());
    EXPECT_EQ(watch.on_end(2, kKilled, at(36)), Act::kNothing);
    EXPECT_TRUE(watch.is_over());
    EXPECT_EQ(watch.story(), 1);
  }
}

TEST(SpawnWatch, AFailureAfterOthersHaveEndedWellIsTheStory) {
  SpawnWatch watch(2, kGrace);
  watch.on_end(0, kWell, at(1));
  EXPECT_EQ(watch.on_end(1, kThrew, at(2)), Act::kNothing);  // no rank is left to be told
  EXPECT_TRUE(watch.is_over());
  EXPECT_EQ(watch.story(), 1);
}

TEST(SpawnWatch, TheFirstFailureIsTheStory) {
  SpawnWatch watch(3, kGrace);
  watch.on_end(2, kThrew, at(1));
  watch.on_end(0, kCrashed, at(1));  // for example in its handler of SIGTERM
  watch.on_end(1, kWell, at(1));
  EXPECT_EQ(watch.story(), 2);
}

TEST(SpawnWatch, ARankThatOnlyLostAPeerIsNotTheStoryWhereThePeerHasFailed) {
  SpawnWatch watch(3, kGrace);
  watch.on_end(0, lost(2), at(1));
  watch.on_end(2, lost(1), at(1));
  watch.on_end(1, kKilled, at(1));  // the watch has killed no rank yet: another process did it
  EXPECT_EQ(watch.story(), 1);
}

TEST(SpawnWatch, APeerThatIsLostGetsTheTimeToEndByItself) {
  SpawnWatch watch(3, kGrace);
  EXPECT_EQ(watch.on_end(0, lost(1), at(1)), Act::kNothing);
  EXPECT_EQ(watch.next_time(), at(2));
  EXPECT_EQ(watch.on_end(1, kThrew, at(1)), Act::kTerminate);
  EXPECT_EQ(watch.next_time(), at(31));
  watch.on_end(2, kTerminated, at(1));
  EXPECT_EQ(watch.story(), 1);

  SpawnWatch hangs(2, kGrace);
  hangs.on_end(0, lost(1), at(1));
  EXPECT_EQ(hangs.on_stop(Haste::kGrace, at(1)), Act::kTerminate);
  EXPECT_EQ(hangs.on_time(at(2)), Act::kNothing);
  EXPECT_EQ(hangs.on_time(at(31)), Act::kKill);
}

TEST(SpawnWatch, APeerThatEndedWellOrAsItWasToldIsNotToBlame) {
  for (const RankEnd& peer : {kWell, kTerminated}) {
    SpawnWatch watch(2, kGrace);
    watch.on_end(0, lost(1), at(1));
    EXPECT_EQ(watch.on_time(at(2)), Act::kTerminate);
    watch.on_end(1, peer, at(2));
    EXPECT_EQ(watch.story(), 0);
  }
  SpawnWatch killed(2, kGrace);
  killed.on_end(0, lost(1), at(1));
  killed.on_time(at(2));
  killed.on_time(at(32));
  killed.on_end(1, kKilled, at(32));
  EXPECT_EQ(killed.story(), 0);
}

TEST(SpawnWatch, TwoThatBlameEachOtherAndPeersThatAreNoneEndInTheFirst) {
  SpawnWatch each_other(2, kGrace);
  each_other.on_end(1, lost(0), at(1));
  each_other.on_end(0, lost(1), at(1));
  EXPECT_EQ(each_other.story(), 1);
  SpawnWatch none(2, kGrace);
  none.on_end(1, lost(7), at(1));
  none.on_end(0, kTerminated, at(1));
  EXPECT_EQ(none.story(), 1);
}

TEST(SpawnWatch, AStopTellsAndKillsAndIsNobodysFailure) {
  SpawnWatch watch(2, kGrace);
  EXPECT_EQ(watch.on_stop(Haste::kGrace, at(1)), Act::kTerminate);
  EXPECT_EQ(watch.on_stop(Haste::kGrace, at(2)), Act::kNothing);
  EXPECT_EQ(watch.next_time(), at(31));
  watch.on_end(0, kThrew, at(3));  // because it was told to end
  EXPECT_EQ(watch.on_time(at(31)), Act::kKill);
  watch.on_end(1, kKilled, at(31));
  EXPECT_EQ(watch.story(), std::nullopt);
}

TEST(SpawnWatch, AStopWithoutGraceKillsAtOnceAlsoAfterOneWithGrace) {
  SpawnWatch at_once(1, kGrace);
  EXPECT_EQ(at_once.on_stop(Haste::kNow, at(1)), Act::kKill);
  EXPECT_EQ(at_once.on_stop(Haste::kNow, at(1)), Act::kNothing);
  SpawnWatch later(1, kGrace);
  later.on_stop(Haste::kGrace, at(1));
  EXPECT_EQ(later.on_stop(Haste::kNow, at(2)), Act::kKill);
}

TEST(SpawnWatch, IsOverWithoutARankThatTheKernelDoesNotLetGo) {
  SpawnWatch watch(2, kGrace);
  watch.on_end(0, kThrew, at(0));
  watch.on_time(at(30));
  EXPECT_EQ(watch.on_time(at(59)), Act::kNothing);
  EXPECT_FALSE(watch.is_over());
  EXPECT_EQ(watch.on_time(at(60)), Act::kNothing);
  EXPECT_TRUE(watch.is_over());
  EXPECT_FALSE(watch.has_ended(1));
  EXPECT_EQ(watch.story(), 0);
}

}  // namespace
}  // namespace ddprun
