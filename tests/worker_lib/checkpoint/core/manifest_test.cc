#include "worker_lib/checkpoint/core/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "worker_lib/serialization/core/temporary_name.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = CheckpointFileName::Kind;

TEST(CheckpointManifest, FileNamesSortLikeSteps) {
  EXPECT_EQ(manifest_name(120), "step-000000000120.json");
  EXPECT_LT(manifest_name(9), manifest_name(10));
  EXPECT_LT(manifest_name(999), manifest_name(1000));
}

TEST(CheckpointManifest, ADataFileNeverTakesANameThatIsTaken) {
  EXPECT_EQ(data_name(7, {}), "step-000000000007.pt");
  EXPECT_EQ(data_name(7, {"step-000000000007.pt"}), "step-000000000007-2.pt");
  EXPECT_EQ(data_name(7, {"step-000000000007.pt", "step-000000000007-2.pt"}),
            "step-000000000007-3.pt");
}

TEST(CheckpointManifest, EveryNameThatWeMakeIsRecognised) {
  for (const std::int64_t step : {0LL, 7LL, 999999999999LL, 1234567890123LL}) {
    const std::string data = data_name(step, {data_name(step, {})});
    EXPECT_EQ(parse_file_name(data), (CheckpointFileName{Kind::kData, step}));
    EXPECT_EQ(parse_file_name(temporary_name(data, "5f00")),
              (CheckpointFileName{Kind::kTemporary, step}));
    EXPECT_EQ(parse_file_name(manifest_name(step)), (CheckpointFileName{Kind::kManifest, step}));
  }
}

TEST(CheckpointManifest, ShardsAreNamedAfterTheDataFileAndTakeItsName) {
  EXPECT_EQ(shard_name("step-000000000007.pt", 3), "step-000000000007.shard-0003.pt");
  EXPECT_EQ(shard_name("step-000000000007-2.pt", 12345), "step-000000000007-2.shard-12345.pt");
  EXPECT_EQ(data_name(7, {"step-000000000007.shard-0002.pt"}), "step-000000000007-2.pt");
  EXPECT_EQ(data_name(7, {"step-000000000007.pt", "step-000000000007-2.shard-0000.pt"}),
            "step-000000000007-3.pt");
  for (const char* data : {"step-000000000007.pt", "step-000000000007-2.pt"})
    for (const int shard : {0, 9999, 12345}) {
      const std::string name = shard_name(data, shard);
      EXPECT_EQ(parse_file_name(name), (CheckpointFileName{Kind::kData, 7, shard})) << name;
      EXPECT_EQ(parse_file_name(temporary_name(name, "5f00")),
                (CheckpointFileName{Kind::kTemporary, 7, shard}));
    }
}

TEST(CheckpointManifest, NamesOneWholeFileOrAllShardsInOrder) {
  const auto names = [](const std::vector<std::string>& files) {
    CheckpointManifest manifest{.step = 7};
    for (const std::string& file : files) manifest.files.push_back({.name = file});
    return names_data_files(manifest);
  };
  const std::string one = "step-000000000007.pt";
  EXPECT_TRUE(names({one}));
  EXPECT_TRUE(names({shard_name(one, 0)}));
  EXPECT_TRUE(names({shard_name(one, 0), shard_name(one, 1)}));
  EXPECT_FALSE(names({}));
  EXPECT_FALSE(names({one, one}));
  EXPECT_FALSE(names({shard_name(one, 1), shard_name(one, 0)}));
  EXPECT_FALSE(names({shard_name(one, 0), shard_name(one, 2)}));
  EXPECT_FALSE(names({"step-000000000008.pt"}));
  EXPECT_FALSE(names({"step-000000000007.json"}));
  EXPECT_FALSE(is_sharded({.step = 7, .files = {{.name = one}}}));
  EXPECT_TRUE(is_sharded({.step = 7, .files = {{.name = shard_name(one, 0)}}}));
}

TEST(CheckpointManifest, NamesThatAreNotOursAreLeftAlone) {
  for (const char* name :
       {"", "step-000000000007.shard-.pt", "step-000000000007.shard-1.pt",
        "step-000000000007.shard-00x1.pt", "step-000000000007.shard-0001.json",
        "step-000000000007.shard--001.pt", "step-", "step-12.pt", "step-.json",
        "step-00000000012x.pt", "model.pt", "step-000000000012.txt", "step-000000000012",
        "notes.tmp", "step-000000000012.tmp", "step-0000000000012.json", "step--00000000012.pt",
        "step-000000000012-x.pt", "step-000000000012-2.json"})
    EXPECT_EQ(parse_file_name(name), std::nullopt) << name;
}

TEST(CheckpointManifest, AnnouncedStepsAreThoseWithAManifestNewestFirst) {
  const std::vector<std::string> names{"step-000000000002.json", "step-000000000002.pt",
                                       "step-000000000010.json", "step-000000000011.pt",
                                       "step-000000000012.json.5f.tmp"};
  EXPECT_THAT(announced_steps(names), ElementsAre(10, 2));
}

TEST(CheckpointManifest, LeftoversAreTemporaryFilesAndDataThatNoManifestNames) {
  const std::vector<std::string> names{
      "step-000000000001.json",      "step-000000000001.pt",  // whole
      "step-000000000001-2.pt",                               // an earlier attempt of step 1
      "step-000000000002.pt",                                 // killed before the manifest
      "step-000000000003.pt.1f.tmp", "step-000000000003.json.2e.tmp", "README"};
  EXPECT_THAT(leftovers(names, {{1, {"step-000000000001.pt"}}}),
              ElementsAre("step-000000000001-2.pt", "step-000000000002.pt",
                          "step-000000000003.pt.1f.tmp", "step-000000000003.json.2e.tmp"));
}

TEST(CheckpointManifest, DataOfAStepWhoseManifestCannotBeReadIsKept) {
  const std::vector<std::string> names{"step-000000000001.json", "step-000000000001.pt"};
  EXPECT_THAT(leftovers(names, {}), IsEmpty());
}

TEST(CheckpointManifest, ForgetsTheOldestFirst) {
  EXPECT_THAT(steps_to_forget(std::vector<RatedStep>{{9}, {7}, {5}, {3}}, 2), ElementsAre(3, 5));
  EXPECT_THAT(steps_to_forget(std::vector<RatedStep>{{9}}, 2), IsEmpty());
}

TEST(CheckpointManifest, TheBestAreKeptBesideTheNewest) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const std::vector<RatedStep> steps{{9, 0.5}, {8, nan}, {7, 0.1}, {6, 0.9}, {5, 0.1}, {4}};
  EXPECT_THAT(steps_to_forget(steps, 1, 2, Better::kLower), ElementsAre(4, 6, 8));
  EXPECT_THAT(steps_to_forget(steps, 1, 2, Better::kHigher), ElementsAre(4, 5, 7, 8))
      << "the newest is one of the best";
  EXPECT_EQ(best_step(steps, Better::kLower), 7) << "of equals the newest";
  EXPECT_EQ(best_step(steps, Better::kHigher), 6);
  EXPECT_EQ(best_step(std::vector<RatedStep>{{8, nan}, {4}}, Better::kLower), std::nullopt);
}

TEST(CheckpointManifest, RanksThatReadTheSameCheckpointAgreeAtOnce) {
  const std::vector<RestoreCandidate> reports{{8, "a"}, {8, "a"}, {8, "a"}};
  const RestoreRound round = agree_on_step(reports);
  EXPECT_TRUE(round.done);
  EXPECT_EQ(round.step, 8);
}

TEST(CheckpointManifest, TheRankThatCanReadLeastSetsTheBound) {
  const std::vector<RestoreCandidate> reports{{8, "a"}, {6, "b"}, {8, "a"}};
  const RestoreRound round = agree_on_step(reports);
  EXPECT_FALSE(round.done);
  EXPECT_EQ(round.bound, 6);
  EXPECT_EQ(round.rank, 1);
  EXPECT_FALSE(round.differs);
}

TEST(CheckpointManifest, DifferentCheckpointsOfOneStepAreNotRestored) {
  const std::vector<RestoreCandidate> reports{{8, "a"}, {8, "a"}, {8, "b"}};
  const RestoreRound round = agree_on_step(reports);
  EXPECT_FALSE(round.done);
  EXPECT_EQ(round.bound, 7);
  EXPECT_EQ(round.rank, 2);
  EXPECT_TRUE(round.differs);
}

TEST(CheckpointManifest, ARankThatCanReadNothingMeansNothingForAll) {
  const std::vector<RestoreCandidate> reports{{8, "a"}, {-1, ""}};
  const RestoreRound round = agree_on_step(reports);
  EXPECT_TRUE(round.done);
  EXPECT_EQ(round.step, -1);
}

}  // namespace
}  // namespace ddprun
