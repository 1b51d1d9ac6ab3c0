#include "worker_lib/group/every_rank.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_dist_error.h"
#include "tests/support/thread_world.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::StrEq;
using testing_support::ThreadWorld;

constexpr auto kTimeout = std::chrono::minutes(1);

TEST(EveryRank, ReturnsTheResultsByRank) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    EXPECT_THAT(on_every_rank(group, "count", kTimeout, [&]() -> json { return group.rank(); }),
                ElementsAre(0, 1, 2));
  });
}

TEST(EveryRank, AFailureIsThrownOnAllRanksAndNamesTheFirstRankThatFailed) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    const auto part = [&]() -> json {
      if (group.rank() > 0)
        refuse("disk " + std::to_string(group.rank()) + " is full", DistError::Kind::kSystem);
      return nullptr;
    };
    EXPECT_DIST_ERROR((void)on_every_rank(group, "save a file", kTimeout, part),
                      DistError::Kind::kSystem, StrEq("save a file: rank 1: disk 1 is full"));
    EXPECT_EQ(group.all_gather_object(group.rank()).size(), 3u) << "the group must stay usable";
  });
}

TEST(EveryRank, AFailureOfAllRanksNamesNone) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    const auto part = []() -> json { refuse("the disk is full", DistError::Kind::kSystem); };
    EXPECT_DIST_ERROR((void)on_every_rank(group, "save a file", kTimeout, part),
                      DistError::Kind::kSystem, StrEq("the disk is full"));
  });
}

TEST(EveryRank, AReportKeepsKindAndMessageOfAFailure) {
  EXPECT_EQ(to_json_report(std::nullopt), json(nullptr));
  EXPECT_NO_THROW(throw_reported(nullptr, "rank 1: "));
  const json report = to_json_report(DistError(DistError::Kind::kCorrupt, "it is damaged"));
  EXPECT_DIST_ERROR(throw_reported(report, "rank 1: "), DistError::Kind::kCorrupt,
                    StrEq("rank 1: it is damaged"));
}

}  // namespace
}  // namespace ddprun
