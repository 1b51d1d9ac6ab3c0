#include "ddprun/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>

#include <fstream>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/expect_dist_error.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = DistError::Kind;

// Numbers: a dataset whose i-th example is i.
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
  EXPECT_EQ(sampler.state().at("position"), 0);  // in epoch 1, which has not begun
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
    after.set_epoch(2);  // as a training loop does before each epoch
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
    if (!saved.is_null()) continue;  // a loader with threads must be emptied
    seen.insert(seen.end(), batch.begin(), batch.end());
    if (seen.size() == 20) saved = sampler.state();
  }
  EXPECT_EQ(saved.at("position"), 20);
  DistributedSampler resumed(64, options);
  resumed.load_state(saved);
  for (const std::size_t index : one_pass(resumed)) seen.push_back(index);
  EXPECT_EQ(seen, one_pass(whole));
}

// Leaves a pass after each possible number of batches. The loop's samples, followed by the
// samples of a sampler that resumes there, must be the whole epoch with each sample once.
template <class Sampler, class Make>
void expect_nothing_lost(const Make& make, const torch::data::DataLoaderOptions& options,
                         std::size_t batches) {
  Sampler whole = make();
  const std::vector<std::size_t> epoch = one_pass(whole);
  for (std::size_t stop = 0; stop <= batches; ++stop) {
    Sampler sampler = make(), resumed = make();
    auto loader = torch::data::make_data_loader(Numbers(64), sampler, options);
    std::vector<std::size_t> seen;
    std::size_t got = 0;
    json saved = sampler.state();
    for (auto& batch : *loader) {
      if (got == stop) break;
      ++got;
      seen.insert(seen.end(), batch.begin(), batch.end());
      saved = sampler.state();
      EXPECT_EQ(saved.at("position"), 2 * seen.size());
    }
    ASSERT_EQ(got, stop);
    resumed.load_state(saved);
    auto rest = torch::data::make_data_loader(Numbers(64), resumed, options);
    for (auto& batch : *rest) seen.insert(seen.end(), batch.begin(), batch.end());
    EXPECT_EQ(seen, epoch) << "stopped after " << stop << " batches";
  }
}

TEST(DistributedSampler, ALoaderWithThreadsNeedsNoOptionForThePosition) {
  for (const std::size_t workers : {0, 1, 3})
    for (const std::optional<std::size_t> jobs : {std::optional<std::size_t>(), {1}, {20}}) {
      torch::data::DataLoaderOptions options(4);
      options.workers(workers);
      if (workers > 0) options.max_jobs(jobs);
      expect_nothing_lost<DistributedSampler>(
          [] { return DistributedSampler(64, {.seed = 4, .rank = 1, .world_size = 2}); }, options,
          8);
    }
}

TEST(DistributedSampler, NeitherDoLoadersOfTheOtherSamplers) {
  const auto options = torch::data::DataLoaderOptions(4).workers(2);
  expect_nothing_lost<DistributedWeightedSampler>(
      [] {
        std::vector<double> weights(64, 1);
        return DistributedWeightedSampler(weights, 40, {.seed = 4, .rank = 1, .world_size = 2});
      },
      options, 5);
  expect_nothing_lost<DistributedBatchSampler>(
      [] {
        return DistributedBatchSampler(
            64, {.batch_size = 5, .of_samples = {.seed = 4, .rank = 1, .world_size = 2}});
      },
      options, 7);
}

// Damaged: a dataset that fails to return one of its examples.
class Damaged : public torch::data::datasets::Dataset<Damaged, std::size_t> {
 public:
  Damaged(std::size_t size, std::size_t bad, bool is_exception)
      : size_(size), bad_(bad), is_exception_(is_exception) {}
  std::size_t get(std::size_t index) override {
    if (index == bad_ && is_exception_) throw std::runtime_error("damaged");
    if (index == bad_) throw 5;
    return index;
  }
  std::optional<std::size_t> size() const override { return size_; }

 private:
  std::size_t size_, bad_;
  bool is_exception_;
};

TEST(DistributedSampler, ABatchThatTheDatasetDoesNotMakeDoesNotReachTheLoop) {
  const DistributedSamplerOptions place{.seed = 4, .rank = 1, .world_size = 2};
  DistributedSampler whole(64, place);
  const std::vector<std::size_t> epoch = one_pass(whole);  // 8 batches of 4
  for (const std::size_t workers : {0, 1, 3})
    for (const bool is_exception : {true, false}) {
      DistributedSampler sampler(64, place);
      auto loader =
          torch::data::make_data_loader(Damaged(64, epoch[10], is_exception), sampler,
                                        torch::data::DataLoaderOptions(4).workers(workers));
      std::size_t batch = 0;
      const auto position = [&] { return sampler.state().at("position").get<std::size_t>(); };
      for (auto it = loader->begin(); it != loader->end();) {
        EXPECT_EQ(it->front(), epoch[4 * batch]);
        EXPECT_EQ(position(), 8 * (batch + 1)) << workers << " workers, batch " << batch;
        ++batch;
        try {
          ++it;
        } catch (...) {
          EXPECT_EQ(batch, 2u);
          EXPECT_EQ(position(), 16u) << "a run that resumes here tries the batch again";
          ++batch;
          ++it;
        }
      }
      EXPECT_EQ(batch, 8u);
      EXPECT_EQ(position(), 64u);
    }
}

TEST(DistributedSampler, KnowsTheBatchSizeOfItsLoader) {
  DistributedSampler sampler(64, {.rank = 0, .world_size = 2}), resumed(64, {}), same(64, {});
  EXPECT_FALSE(sampler.state().contains("batch_size"));
  const auto loader = torch::data::make_data_loader(Numbers(64), sampler, 4);
  EXPECT_EQ(sampler.state().at("batch_size"), 4);
  DistributedBatchSampler whole_batches(64, {.batch_size = 5});
  const auto other = torch::data::make_data_loader(Numbers(64), whole_batches, 9);
  EXPECT_EQ(whole_batches.state().at("batch_size"), 5);
  // Here the loaders are made after the state was loaded.
  const auto warning_of = [&](DistributedSampler& one, std::size_t batch) {
    one.load_state(sampler.state());
    testing::internal::CaptureStderr();
    const auto made = torch::data::make_data_loader(Numbers(64), one, batch);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warning_of(same, 8), testing::IsEmpty());
  EXPECT_THAT(warning_of(resumed, 4),
              testing::AllOf(HasSubstr("batches of 8 samples"), HasSubstr("makes 4")));
}

TEST(DistributedSampler, ALoaderInAnyOrderHasNoPositionInThePass) {
  DistributedSampler sampler(32, {});
  auto loader = torch::data::make_data_loader(
      Numbers(32), sampler,
      torch::data::DataLoaderOptions(5).workers(2).enforce_ordering(false).drop_last(true));
  std::size_t got = 0;
  for (const auto& batch : *loader) {
    if (++got == 1)
      EXPECT_DIST_ERROR(sampler.state(), Kind::kUnsupported, HasSubstr("enforce_ordering(false)"));
    EXPECT_EQ(batch.size(), 5u);
  }
  EXPECT_EQ(got, 6u);
  EXPECT_EQ(sampler.state().at("position"), 30);  // all requested samples have arrived
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.state().at("position"), 0);
}

template <class Sampler>
void expect_no_position_if_drawn_elsewhere(Sampler sampler) {
  const auto on_another_thread = [&](auto call) { std::thread(call).join(); };
  sampler.next(4);
  EXPECT_NO_THROW(sampler.state()) << "one thread draws and saves";
  on_another_thread([&] { sampler.next(4); });
  const auto expect_refused = [&] {
    EXPECT_DIST_ERROR(
        sampler.state(), Kind::kUnsupported,
        AllOf(HasSubstr("another thread called next()"), HasSubstr("make_data_loader()"),
              HasSubstr("'prefetched'"), HasSubstr("set_epoch()")));
  };
  expect_refused();
  on_another_thread([&] {
    while (sampler.next(4)) continue;
  });
  expect_refused();  // the loop may not have them all
  sampler.set_epoch(1);
  EXPECT_EQ(sampler.state().at("position"), 0);
  on_another_thread([&] {
    sampler.reset();
    sampler.next(4);
    EXPECT_EQ(sampler.state().at("position"), 4) << "a training may have a thread of its own";
  });
  expect_refused();
  sampler.reset();
  EXPECT_NO_THROW(sampler.state()) << "nothing is drawn in this pass yet";
}

TEST(DistributedSampler, HasNoPositionIfAnotherThreadDrawsAheadOfTheLoop) {
  expect_no_position_if_drawn_elsewhere(DistributedSampler(32, {}));
  expect_no_position_if_drawn_elsewhere(
      DistributedWeightedSampler(std::vector<double>(32, 1), 32, {}));
  expect_no_position_if_drawn_elsewhere(DistributedBatchSampler(32, {.batch_size = 4}));
}

TEST(DistributedSampler, HasAPositionIfTheLoopTellsItWhatItGot) {
  DistributedSampler sampler(32, {.shuffle = false, .prefetched = true});
  std::thread([&] { sampler.next(8); }).join();
  sampler.delivered(4);
  EXPECT_EQ(sampler.state().at("position"), 4);
}

TEST(DistributedSampler, HasAPositionAlsoForAThreadThatDoesNotRunTheLoop) {
  for (const std::size_t workers : {0, 2}) {
    DistributedSampler sampler(32, {});
    const auto loader = torch::data::make_data_loader(
        Numbers(32), sampler, torch::data::DataLoaderOptions(4).workers(workers));
    std::thread([&] {
      std::size_t got = 0;
      for (auto it = loader->begin(); ++got < 3; ++it) static_cast<void>(*it);
    }).join();
    EXPECT_EQ(sampler.state().at("position"), 12) << workers << " workers";
  }
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

TEST(DistributedSampler, RefusesAStateOfAnotherDatasetOrSeed) {
  const json saved = DistributedSampler(10, {.seed = 1}).state();
  DistributedSampler other_size(11, {.seed = 1}), other_seed(10, {.seed = 2});
  EXPECT_DIST_ERROR(other_size.load_state(saved), Kind::kInvalidArgument,
                    HasSubstr("dataset_size 10, this sampler has 11"));
  EXPECT_DIST_ERROR(other_seed.load_state(saved), Kind::kInvalidArgument,
                    HasSubstr("seed 1, this sampler has 2"));
}

std::vector<DistributedSampler> world_of(int size, const json& state = nullptr,
                                         bool drop_last = false) {
  std::vector<DistributedSampler> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.emplace_back(23,
                       DistributedSamplerOptions{
                           .seed = 5, .drop_last = drop_last, .rank = rank, .world_size = size});
    if (!state.is_null()) ranks.back().load_state(state);
  }
  return ranks;
}

TEST(DistributedSampler, AWorldOfAnotherSizeDealsWhatIsLeft) {
  for (const bool drop_last : {false, true}) {
    std::vector<std::size_t> seen;
    const auto deal = [&](std::vector<DistributedSampler>& world, std::size_t steps) {
      for (DistributedSampler& rank : world)
        for (std::size_t step = 0; step < steps; ++step)
          for (const std::size_t index : rank.next(2).value_or(std::vector<std::size_t>()))
            seen.push_back(index);
      return world[0].state();
    };
    auto four = world_of(4, nullptr, drop_last);
    json state = deal(four, 1);  // 8 of 23
    EXPECT_EQ(state.at("position"), 8);
    auto three = world_of(3, state, drop_last);
    EXPECT_EQ(three[1].state().at("position"), 8);
    state = deal(three, 1);  // 14
    EXPECT_EQ(state.at("position"), 14);
    auto two = world_of(2, json::parse(state.dump()), drop_last);
    state = deal(two, 100);  // the other 9: one is left out, or one is repeated to be even
    EXPECT_EQ(state.at("position"), drop_last ? 22 : 24);
    EXPECT_EQ(seen.size(), drop_last ? 22u : 24u);
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), drop_last ? 22u : 23u);
    // All samples have been dealt. The next pass is a whole one.
    auto five = world_of(5, state, drop_last);
    EXPECT_EQ(five[0].next(3).has_value(), false);
    five[0].reset();
    EXPECT_EQ(drain(five[0]).size(), drop_last ? 4u : 5u);
  }
}

TEST(DistributedWeightedSampler, DrawsWhatPyTorchsDrawsAndDealsItInTurn) {
  std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/weighted-sampler-vectors.json");
  const json cases = json::parse(file);
  ASSERT_GE(cases.size(), 5u);
  for (const json& one : cases)
    for (const int world : {1, 3}) {
      const std::vector<std::size_t> drawn = one.at("drawn");
      for (int rank = 0; rank < world; ++rank) {
        // Only the sum of seed and epoch matters.
        DistributedWeightedSampler sampler(
            one.at("weights"), one.at("samples"),
            {.seed = one.at("seed").get<std::int64_t>() - (one.at("seed") == 0 ? 0 : 1),
             .replacement = one.at("replacement"),
             .rank = rank,
             .world_size = world});
        if (one.at("seed") != 0) sampler.set_epoch(1);
        const auto dealt = one_pass(sampler);
        ASSERT_EQ(dealt.size(), (drawn.size() + world - 1) / world);
        for (std::size_t i = 0; i < dealt.size(); ++i)
          EXPECT_EQ(dealt[i], drawn[(i * world + rank) % drawn.size()]);
      }
    }
}

TEST(DistributedWeightedSampler, ResumesAndRefusesOtherWeights) {
  const std::vector<double> weights{1, 2, 3, 4};
  DistributedWeightedSampler whole(weights, 20, {}), before(weights, 20, {}),
      after(weights, 20, {}), other({1, 2, 3, 5}, 20, {});
  auto expected = one_pass(whole);
  before.reset();
  std::vector<std::size_t> seen = *before.next(7);
  after.load_state(before.state());
  for (const std::size_t index : one_pass(after)) seen.push_back(index);
  EXPECT_EQ(seen, expected);
  EXPECT_DIST_ERROR(other.load_state(before.state()), Kind::kInvalidArgument,
                    HasSubstr("the saved state has weights_sha256"));
  EXPECT_DIST_ERROR(other.reset(5), Kind::kInvalidArgument, HasSubstr("that of the weights"));
}

TEST(DistributedWeightedSampler, RefusesWhatCannotBeDrawn) {
  const auto expect = [](std::vector<double> weights, std::size_t samples, bool replacement,
                         const char* words) {
    EXPECT_DIST_ERROR(DistributedWeightedSampler(weights, samples, {.replacement = replacement}),
                      Kind::kInvalidArgument, HasSubstr(words));
  };
  expect({1, -1}, 2, true, "weight 1 is -1.0");
  expect({1, std::nan("")}, 2, true, "weight 1 is nan");
  expect({0, 0}, 2, true, "no weight is above 0");
  expect({}, 2, true, "no weight is above 0");
  expect({1, 1}, 0, true, "an epoch of 0 samples");
  expect({1, 0, 1}, 3, false, "3 samples without replacement from 2");
  expect({1e308, 1e308}, 2, true, "add up to more than a double holds");
  expect(std::vector<double>((1 << 24) + 1, 1.0), 2, true, "16777217 weights; at most 2^24");
}

TEST(DistributedBatchSampler, GivesEveryRankAsManyBatchesWhateverTheLoaderAsksFor) {
  for (const bool drop : {false, true}) {
    std::vector<std::size_t> counts;
    for (int rank = 0; rank < 3; ++rank) {
      DistributedBatchSampler sampler(50, {.batch_size = 4,
                                           .drop_last_batch = drop,
                                           .of_samples = {.rank = rank, .world_size = 3}});
      auto loader = torch::data::make_data_loader(
          Numbers(50), sampler, torch::data::DataLoaderOptions().batch_size(9).workers(2));
      std::vector<std::size_t> sizes;
      for (auto& batch : *loader) sizes.push_back(batch.size());
      EXPECT_EQ(sizes.size(), sampler.batches());
      EXPECT_EQ(sizes.size(), drop ? 4u : 5u);  // each rank has 17 samples
      for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(sizes[i], 4u);
    }
  }
  // Samples that are dropped are not dealt.
  DistributedBatchSampler dropping(10, {.batch_size = 4, .drop_last_batch = true});
  while (dropping.next()) continue;
  EXPECT_EQ(dropping.state().at("position"), 8);
  EXPECT_DIST_ERROR(DistributedBatchSampler(5, {.batch_size = 0}), Kind::kInvalidArgument,
                    HasSubstr("a batch of 0 samples"));
}

TEST(DistributedEvalSampler, DealsEverySampleOnceInOrder) {
  for (const std::size_t size : {0u, 1u, 2u, 10u, 11u, 12u}) {
    std::vector<std::size_t> seen;
    for (int rank = 0; rank < 3; ++rank) {
      DistributedEvalSampler sampler(size, rank, 3);
      auto loader = torch::data::make_data_loader(
          Numbers(size), sampler, torch::data::DataLoaderOptions().batch_size(2).workers(2));
      for (int pass = 0; pass < 2; ++pass) {
        std::vector<std::size_t> own;
        for (auto& batch : *loader) own.insert(own.end(), batch.begin(), batch.end());
        EXPECT_EQ(own.size(), sampler.size());
        EXPECT_TRUE(std::ranges::is_sorted(own));
        if (pass == 0) seen.insert(seen.end(), own.begin(), own.end());
      }
    }
    EXPECT_EQ(seen.size(), size);
    EXPECT_EQ(std::set(seen.begin(), seen.end()).size(), size);
  }
  std::stringstream bytes;
  DistributedEvalSampler before(10, 1, 3), after(10, 1, 3), other(10, 2, 3);
  before.next(2);
  {
    torch::serialize::OutputArchive archive;
    before.save(archive);
    archive.save_to(bytes);
  }
  torch::serialize::InputArchive archive;
  archive.load_from(bytes);
  after.load(archive);
  EXPECT_THAT(*after.next(9), ElementsAre(7));
  EXPECT_DIST_ERROR(other.load(archive), Kind::kInvalidArgument,
                    HasSubstr("the saved state has rank 1, this sampler has 2"));
  EXPECT_DIST_ERROR(DistributedEvalSampler(3, 1, 1), Kind::kInvalidArgument,
                    HasSubstr("rank 1 is not in a world of 1"));
}

TEST(PerRank, RefusesWhatDoesNotDivide) {
  EXPECT_EQ(per_rank(64, 4), 16u);
  EXPECT_EQ(per_rank(3, 1), 3u);
  EXPECT_DIST_ERROR(per_rank(64, 3), Kind::kInvalidArgument,
                    HasSubstr("a batch of 64 does not divide among 3 ranks; 63 and 66 do"));
  EXPECT_DIST_ERROR(per_rank(2, 3), Kind::kInvalidArgument, HasSubstr("among 3 ranks; 3 do"));
  EXPECT_DIST_ERROR(per_rank(8, 0), Kind::kInvalidArgument, HasSubstr("a world of 0 ranks"));
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
