#include "ddprun/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "tests/support/expect_dist_error.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = DistError::Kind;

// A dataset whose i-th example is i.
class Numbers : public torch::data::datasets::Dataset<Numbers, std::size_t> {
 public:
  explicit Numbers(std::size_t size) : size_(size) {}
  std::size_t get(std::size_t index) override { return index; }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_;
};

std::vector<std::size_t> drain(DistributedSampler& sampler, std::size_t batch_size = 3) {
  std::vector<std::size_t> result;
  while (const auto batch = sampler.next(batch_size))
    result.insert(result.end(), batch->begin(), batch->end());
  return result;
}

std::vector<std::size_t> one_pass(DistributedSampler& sampler, std::size_t batch_size = 3) {
  sampler.reset();
  return drain(sampler, batch_size);
}

std::vector<std::size_t> sorted(std::vector<std::size_t> values) {
  std::ranges::sort(values);
  return values;
}

json sampler_vectors() {
  std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/sampler-vectors.json");
  return json::parse(file);
}

TEST(DistributedSampler, DealsPyTorchsIndicesForEveryVector) {
  const json vectors = sampler_vectors();
  ASSERT_GE(vectors.at("cases").size(), 10u);
  for (const json& one : vectors.at("cases"))
    for (int rank = 0; rank < one.at("world"); ++rank) {
      DistributedSampler sampler(one.at("n"), {.seed = one.at("seed"),
                                               .shuffle = one.at("shuffle"),
                                               .drop_last = one.at("drop_last"),
                                               .rank = rank,
                                               .world_size = one.at("world")});
      sampler.set_epoch(one.at("epoch"));
      const auto indices = one_pass(sampler);
      EXPECT_EQ(json(indices), one.at("ranks").at(rank)) << one.dump() << " rank " << rank;
      EXPECT_EQ(sampler.size(), one.at("num_samples").get<std::size_t>());
    }
}

TEST(DistributedSampler, AloneItDealsPyTorchsPermutations) {
  const json vectors = sampler_vectors();
  ASSERT_GE(vectors.at("randperm").size(), 20u);
  for (const json& one : vectors.at("randperm")) {
    DistributedSampler sampler(one.at("n"), {.seed = one.at("seed")});
    EXPECT_EQ(json(one_pass(sampler)), one.at("perm")) << one.dump();
  }
}

TEST(DistributedSampler, AShuffledPassWithoutResetIsShuffled) {
  DistributedSampler sampler(100, {.seed = 3});
  const auto first = drain(sampler);
  EXPECT_EQ(first, one_pass(sampler));
  EXPECT_NE(first, sorted(first));
}

TEST(DistributedSampler, CopiesShareTheirState) {
  DistributedSampler sampler(10, {.seed = 1});
  DistributedSampler copy = sampler;
  sampler.set_epoch(5);
  EXPECT_EQ(copy.epoch(), 5);
  const auto of_copy = one_pass(copy);
  EXPECT_EQ(of_copy, one_pass(sampler));
}

TEST(DistributedSampler, WorksInALoaderAndFollowsSetEpoch) {
  DistributedSampler sampler(20, {.seed = 1, .rank = 1, .world_size = 2});
  auto loader = torch::data::make_data_loader(Numbers(20), sampler, 4);
  std::set<std::vector<std::size_t>> orders;
  for (int epoch = 0; epoch < 3; ++epoch) {
    sampler.set_epoch(epoch);
    std::vector<std::size_t> seen;
    for (auto& batch : *loader) seen.insert(seen.end(), batch.begin(), batch.end());
    EXPECT_EQ(seen, one_pass(sampler));
    orders.insert(seen);
  }
  EXPECT_EQ(orders.size(), 3u);
}

TEST(DistributedSampler, ANewEpochChosenInThePassWaitsForTheNextOne) {
  DistributedSampler sampler(12, {.seed = 1}), undisturbed(12, {.seed = 1});
  sampler.reset();
  auto seen = *sampler.next(5);
  sampler.set_epoch(1);
  for (const std::size_t index : drain(sampler)) seen.push_back(index);
  EXPECT_EQ(seen, one_pass(undisturbed));
  EXPECT_EQ(sampler.state().at("position"), 0);  // of epoch 1, which has not begun
}

TEST(DistributedSampler, AResumedEpochGoesOnWithTheNextSample) {
  const DistributedSamplerOptions options{.seed = 9, .rank = 1, .world_size = 3};
  DistributedSampler whole(50, options);
  whole.set_epoch(2);
  const auto expected = one_pass(whole, 4);
  for (std::size_t batches = 0; batches <= (expected.size() + 3) / 4; ++batches) {
    DistributedSampler before(50, options), after(50, options);
    before.set_epoch(2);
    before.reset();
    std::vector<std::size_t> seen;
    for (std::size_t b = 0; b < batches; ++b) {
      const auto batch = before.next(4);
      seen.insert(seen.end(), batch->begin(), batch->end());
    }
    after.load_state(json::parse(before.state().dump()));
    after.set_epoch(2);  // what a training loop does before each epoch
    for (const std::size_t index : one_pass(after, 4)) seen.push_back(index);
    EXPECT_EQ(seen, expected) << "after " << batches << " batches";
    EXPECT_EQ(one_pass(after, 4), expected) << "the pass after the resumed one is a whole one";
  }
}

TEST(DistributedSampler, AnotherEpochAfterResumingBeginsAtItsBeginning) {
  DistributedSampler before(10, {}), after(10, {}), whole(10, {});
  before.reset();
  before.next(4);
  after.load_state(before.state());
  after.set_epoch(1);
  whole.set_epoch(1);
  EXPECT_EQ(one_pass(after), one_pass(whole));
}

TEST(DistributedSampler, ThePositionCountsTheSamplesOfTheWholeWorld) {
  DistributedSampler sampler(10, {.rank = 0, .world_size = 3});
  sampler.reset();
  sampler.next(2);
  EXPECT_EQ(sampler.state().at("position"), 6);
}

TEST(DistributedSampler, AStateThatWasLoadedIsTheStateUntilThePassBegins) {
  DistributedSampler before(10, {}), after(10, {});
  before.set_epoch(3);
  before.reset();
  before.next(4);
  after.load_state(before.state());
  EXPECT_EQ(after.state(), before.state());
}

TEST(DistributedSampler, WithLoaderThreadsThePositionIsWhatTheLoopGot) {
  const DistributedSamplerOptions options{.seed = 4, .prefetched = true};
  DistributedSampler sampler(64, options), whole(64, options);
  auto loader = torch::data::make_data_loader(
      Numbers(64), sampler, torch::data::DataLoaderOptions().batch_size(4).workers(2));
  std::vector<std::size_t> seen;
  json saved;
  for (auto& batch : *loader) {
    sampler.delivered(batch.size());
    if (!saved.is_null()) continue;  // a loader with threads wants to be drained
    seen.insert(seen.end(), batch.begin(), batch.end());
    if (seen.size() == 20) saved = sampler.state();
  }
  EXPECT_EQ(saved.at("position"), 20);
  DistributedSampler resumed(64, options);
  resumed.load_state(saved);
  for (const std::size_t index : one_pass(resumed)) seen.push_back(index);
  EXPECT_EQ(seen, one_pass(whole));
}

TEST(DistributedSampler, DeliveredIsCheckedAgainstWhatWasHandedOut) {
  DistributedSampler plain(8, {}), prefetched(8, {.prefetched = true});
  prefetched.reset();
  prefetched.next(3);
  EXPECT_DIST_ERROR(plain.delivered(1), Kind::kInvalidArgument, HasSubstr("'prefetched'"));
  EXPECT_DIST_ERROR(prefetched.delivered(4), Kind::kInvalidArgument,
                    HasSubstr("delivered(4) after only 3"));
}

TEST(DistributedSampler, ResetWithASizeDealsTheNewDataset) {
  DistributedSampler sampler(4, {.shuffle = false});
  sampler.reset(6);
  EXPECT_THAT(drain(sampler), ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_DIST_ERROR(sampler.reset(0), Kind::kInvalidArgument, HasSubstr("0 samples"));
}

TEST(DistributedSampler, SavesItsStateIntoAnArchive) {
  DistributedSampler before(10, {.seed = 2}), after(10, {.seed = 2});
  before.set_epoch(1);
  before.reset();
  before.next(7);
  std::stringstream bytes;
  {
    torch::serialize::OutputArchive archive;
    before.save(archive);
    archive.save_to(bytes);
  }
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  after.load(archive);
  EXPECT_EQ(after.state(), before.state());
}

TEST(DistributedSampler, RefusesAnEmptyDatasetByName) {
  EXPECT_DIST_ERROR(DistributedSampler(0, {}), Kind::kInvalidArgument,
                    HasSubstr("DistributedSampler: the dataset has 0 samples"));
}

TEST(DistributedSampler, RefusesARankOutsideTheWorld) {
  EXPECT_DIST_ERROR(DistributedSampler(5, {.rank = 3, .world_size = 3}), Kind::kInvalidArgument,
                    HasSubstr("rank 3 is not in a world of 3"));
}

TEST(DistributedSampler, RefusesAStateOfAnotherDatasetSeedOrWorld) {
  const json saved = DistributedSampler(10, {.seed = 1}).state();
  DistributedSampler other_size(11, {.seed = 1}), other_seed(10, {.seed = 2}),
      other_world(10, {.seed = 1, .world_size = 2});
  EXPECT_DIST_ERROR(other_size.load_state(saved), Kind::kInvalidArgument,
                    HasSubstr("dataset_size 10, this sampler has 11"));
  EXPECT_DIST_ERROR(other_seed.load_state(saved), Kind::kInvalidArgument,
                    HasSubstr("seed 1, this sampler has 2"));
  EXPECT_DIST_ERROR(other_world.load_state(saved), Kind::kUnsupported,
                    HasSubstr("world_size 1, this sampler has 2"));
}

TEST(DistributedSampler, RefusesADamagedState) {
  DistributedSampler sampler(10, {});
  const auto with = [&](const char* key, json value) {
    json state = sampler.state();
    state[key] = std::move(value);
    return state;
  };
  EXPECT_DIST_ERROR(sampler.load_state(json::object()), Kind::kInvalidArgument,
                    HasSubstr("has no"));
  EXPECT_DIST_ERROR(sampler.load_state(with("position", "many")), Kind::kInvalidArgument,
                    HasSubstr("position \"many\""));
  EXPECT_DIST_ERROR(sampler.load_state(with("position", 11)), Kind::kInvalidArgument,
                    HasSubstr("position 11"));
  EXPECT_DIST_ERROR(sampler.load_state(with("epoch", -1)), Kind::kInvalidArgument,
                    HasSubstr("epoch -1"));
}

}  // namespace
}  // namespace ddprun
